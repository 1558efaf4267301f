"""The cases of `oracle_jax.py`, one file a family of operations."""
