//! What is put, cut, overwritten, killed and shared.

use std::process::{Command, Stdio};

use super::*;

fn key(number: usize) -> CacheKey {
    CacheKey::new(&[&number.to_le_bytes()])
}

fn cache() -> (tempfile::TempDir, CompileCache) {
    let root = tempfile::tempdir().expect("a temporary folder");
    let cache = CompileCache::open(root.path().join("compiled"), CompileCache::DEFAULT_LIMIT);
    (root, cache)
}

fn files(cache: &CompileCache) -> Vec<PathBuf> {
    fs::read_dir(cache.folder().expect("a folder"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect()
}

/// Makes a file look as if it was last written that long ago.
fn age(path: &Path, seconds: u64) {
    let file = File::options().write(true).open(path).expect("opened");
    file.set_modified(SystemTime::now() - Duration::from_secs(seconds))
        .expect("set");
}

#[test]
fn what_is_put_is_got() {
    let (_root, cache) = cache();
    assert_eq!(cache.get(&key(1)), None);
    cache.check().expect("a folder that can be written to");
    cache.put(&key(1), b"one");
    cache.put(&key(2), b"");
    assert_eq!(cache.get(&key(1)).as_deref(), Some(&b"one"[..]));
    assert_eq!(cache.get(&key(2)).as_deref(), Some(&b""[..]));
    cache.put(&key(1), b"another");
    assert_eq!(cache.get(&key(1)).as_deref(), Some(&b"another"[..]));
    let bytes = (2 * HEADER_BYTES + "another".len()) as u64;
    assert_eq!(cache.usage(), CacheUse { entries: 2, bytes });
    assert_eq!(files(&cache).len(), 2);
    assert_eq!(cache.warning(), None);
}

#[test]
fn keys_tell_parts_apart() {
    let keys = [
        CacheKey::new(&[b"ab", b"c"]),
        CacheKey::new(&[b"a", b"bc"]),
        CacheKey::new(&[b"abc"]),
        CacheKey::new(&[b"abc", b""]),
        CacheKey::new(&[b"c", b"ab"]),
    ];
    for (index, key) in keys.iter().enumerate() {
        assert!(!keys[..index].contains(key), "key {index}");
    }
    assert_eq!(keys[0], CacheKey::new(&[b"ab", b"c"]));
}

#[test]
fn damaged_entries_are_removed_and_missed() {
    let (_root, cache) = cache();
    cache.put(&key(1), b"payload");
    let path = entry_path(cache.folder().expect("a folder"), &key(1));
    let whole = fs::read(&path).expect("read");
    let mut damaged: Vec<Vec<u8>> = (0..whole.len()).map(|cut| whole[..cut].to_vec()).collect();
    for index in 0..whole.len() {
        let mut entry = whole.clone();
        entry[index] ^= 1;
        damaged.push(entry);
    }
    damaged.push([&whole[..], b"more"].concat());
    for entry in damaged {
        fs::write(&path, &entry).expect("written");
        assert_eq!(cache.get(&key(1)), None, "{entry:?}");
        assert!(!path.exists());
    }
    fs::write(&path, &whole).expect("written");
    assert_eq!(cache.get(&key(1)).as_deref(), Some(&b"payload"[..]));
}

#[test]
fn entry_under_the_name_of_another_is_missed() {
    let (_root, cache) = cache();
    cache.put(&key(1), b"one");
    let folder = cache.folder().expect("a folder");
    fs::rename(entry_path(folder, &key(1)), entry_path(folder, &key(2))).expect("moved");
    assert_eq!(cache.get(&key(2)), None);
}

#[test]
fn least_recently_used_goes_first() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let payload = [0; 1000];
    let limit = 3 * (HEADER_BYTES + payload.len()) as u64;
    let cache = CompileCache::open(root.path(), limit);
    for number in 0..3 {
        cache.put(&key(number), &payload);
        age(&entry_path(root.path(), &key(number)), 100 - number as u64);
    }
    assert!(cache.get(&key(0)).is_some(), "this one counts as used now");
    cache.put(&key(3), &payload);
    let kept: Vec<bool> = (0..4)
        .map(|number| cache.get(&key(number)).is_some())
        .collect();
    assert_eq!(kept, [true, false, true, true]);
    assert_eq!(cache.usage().bytes, limit);

    cache.put(&key(4), &[0; 4000]);
    assert_eq!(cache.get(&key(4)), None);
    assert_eq!(cache.usage().entries, 3);
    let warning = cache.warning().expect("a warning");
    assert!(
        warning.contains("set SHARDAX_CACHE_LIMIT to more"),
        "{warning}"
    );
}

#[test]
fn unusable_folders_are_a_warning() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let file = root.path().join("file");
    fs::write(&file, "").expect("written");
    let cache = CompileCache::open(file.join("compiled"), 1000);
    assert_eq!(cache.get(&key(1)), None);
    cache.put(&key(1), b"one");
    cache.put(&key(1), b"one");
    assert_eq!(cache.get(&key(1)), None);
    assert_eq!(cache.usage(), CacheUse::default());
    let fault = cache.check().expect_err("no folder").to_string();
    assert!(fault.starts_with("cannot write to "), "{fault}");
    let warning = cache.warning().expect("a warning");
    assert!(
        warning.contains("set SHARDAX_CACHE to another folder"),
        "{warning}"
    );
}

#[test]
fn full_disk_is_a_warning_and_leaves_nothing() {
    let (_root, cache) = cache();
    cache.put_with(&key(1), b"one", |_| {
        File::options().write(true).open("/dev/full")
    });
    let warning = cache.warning().expect("a warning");
    assert!(warning.contains("No space left on device"), "{warning}");
    assert_eq!(cache.get(&key(1)), None);
    assert_eq!(files(&cache), Vec::<PathBuf>::new());
    cache.put(&key(1), b"one");
    assert!(
        cache.get(&key(1)).is_some(),
        "it goes on when there is room again"
    );
}

#[test]
fn abandoned_files_are_removed_and_others_are_not() {
    let (_root, cache) = cache();
    cache.put(&key(1), b"one");
    let at = |name: &str| cache.folder().expect("a folder").join(name);
    for name in [".writing-dead", ".writing-alive", ".writing-new", "other"] {
        fs::write(at(name), "part").expect("written");
        age(&at(name), 100);
    }
    age(&at(".writing-new"), 0);
    let alive = File::open(at(".writing-alive")).expect("opened");
    alive.lock().expect("locked");
    cache.put(&key(2), b"two");
    assert!(!at(".writing-dead").exists());
    assert!(at(".writing-alive").exists());
    assert!(at(".writing-new").exists());
    assert!(at("other").exists());
}

#[test]
fn disabled_cache_keeps_nothing() {
    let cache = CompileCache::disabled();
    cache.put(&key(1), b"one");
    assert_eq!(cache.get(&key(1)), None);
    assert_eq!(cache.usage(), CacheUse::default());
    assert_eq!(cache.warning(), None);
}

#[test]
fn environment_gives_folder_and_limit() {
    let of = |limit: &str| {
        CompileCache::from_environment(&Environment::from_variables([
            ("SHARDAX_CACHE", "/cache"),
            ("SHARDAX_CACHE_LIMIT", limit),
        ]))
    };
    assert_eq!(of("").folder(), Some(Path::new("/cache/compiled")));
    assert_eq!(of("").limit(), 4 << 30);
    assert_eq!(of("1000").limit(), 1000);
    assert_eq!(of("2k").limit(), 2048);
    assert_eq!(of(" 3M").limit(), 3 << 20);
    assert_eq!(of("0").folder(), None);
    for wrong in ["lots", "G", "-1", "4GB", "1.5G", "99999999999T", "1µ"] {
        let cache = of(wrong);
        assert_eq!(cache.limit(), 4 << 30, "{wrong}");
        let warning = cache.warning().unwrap_or_default();
        assert!(warning.contains("SHARDAX_CACHE_LIMIT is"), "{wrong}");
    }
    let nowhere = Environment::from_variables([("HOME", "")]);
    assert_eq!(CompileCache::from_environment(&nowhere).folder(), None);
}

#[test]
fn threads_share_a_folder() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let payload = |number: usize| vec![number as u8; 10_000 + number];
    std::thread::scope(|scope| {
        for _ in 0..4 {
            // Room for half of the entries, so that entries are evicted under the readers.
            let cache = CompileCache::open(root.path(), 100_000);
            scope.spawn(move || {
                for round in 0..200 {
                    let number = round % 20;
                    if let Some(found) = cache.get(&key(number)) {
                        assert_eq!(found, payload(number));
                    }
                    cache.put(&key(number), &payload(number));
                }
                assert_eq!(cache.warning(), None);
            });
        }
    });
    let cache = CompileCache::open(root.path(), 100_000);
    assert!(cache.usage().bytes <= 100_000, "{:?}", cache.usage());
    assert!(cache.usage().entries > 0);
}

fn is_temporary(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().starts_with(TEMPORARY_PREFIX)
}

const BIG: usize = 4_000_000;

/// Run by [`killed_writer_breaks_nothing`] in a process of its own: puts until it is killed.
#[test]
#[ignore = "a part of another test"]
fn endless_writer() {
    let Some(folder) = std::env::var_os("SHARDAX_TEST_WRITER") else {
        return;
    };
    let cache = CompileCache::open(folder, CompileCache::DEFAULT_LIMIT);
    for number in (0..5).cycle() {
        cache.put(&key(number), &vec![number as u8; BIG]);
    }
}

#[test]
fn killed_writer_breaks_nothing() {
    let (_root, cache) = cache();
    let folder = cache.folder().expect("a folder").to_owned();
    for _ in 0..6 {
        let left = files(&cache);
        let mut writer = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "cache::tests::endless_writer", "--ignored"])
            .env("SHARDAX_TEST_WRITER", &folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("started");
        // Whether it dies in the middle of the file that is seen here is left to chance.
        while !files(&cache)
            .iter()
            .any(|path| is_temporary(path) && !left.contains(path))
        {
            assert!(
                writer.try_wait().expect("known").is_none(),
                "ended too early"
            );
        }
        writer.kill().expect("killed");
        writer.wait().expect("ended");
        for number in 0..5 {
            if let Some(found) = cache.get(&key(number)) {
                assert_eq!(found, vec![number as u8; BIG]);
            }
        }
    }
    for file in files(&cache) {
        age(&file, 100);
    }
    cache.put(&key(9), b"next");
    assert!(cache.get(&key(9)).is_some());
    assert_eq!(
        files(&cache).len(),
        cache.usage().entries,
        "temporary files are left"
    );
    assert_eq!(cache.warning(), None);
}
