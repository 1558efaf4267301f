//! Printed programs: derivatives hold no equation that a person would not have written.

use shardax_core::{DType, Stack, Tensor, TensorType, grad, remat, scan, value_and_grad};

use crate::support::graph;

fn f32<const N: usize>(shape: [usize; N]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

#[test]
fn the_gradient_of_a_small_network() {
    let types = [f32([8, 3]), f32([3, 4]), f32([4]), f32([4, 2])];
    let graph = graph(types, |[x, w, b, v]| {
        let loss = |(w, b, v): (Tensor, Tensor, Tensor)| {
            let hidden = (x.dot(w) + b).tanh();
            hidden.dot(v).square().mean(..)
        };
        value_and_grad(loss)((w, b, v))
    });
    insta::assert_snapshot!(graph, @"
    (a: f32[8,3], b: f32[3,4], c: f32[4], d: f32[4,2]) {
      e = dot_general a b contract=[1],[0] : f32[8,4]
      f = broadcast c dims=[1] : f32[8,4]
      g = add e f : f32[8,4]
      h = tanh g : f32[8,4]
      i = cosh g : f32[8,4]
      j = constant 1.0 : f32[]
      k = broadcast j dims=[] : f32[8,4]
      l = div k i : f32[8,4]
      m = mul l l : f32[8,4]
      n = dot_general h d contract=[1],[0] : f32[8,2]
      o = mul n n : f32[8,2]
      p = add n n : f32[8,2]
      q = reduce_sum o dims=[0, 1] : f32[]
      r = constant 16.0 : f32[]
      s = div q r : f32[]
      t = constant 0.0625 : f32[]
      u = broadcast t dims=[] : f32[8,2]
      v = mul u p : f32[8,2]
      w = dot_general h v contract=[0],[0] : f32[4,2]
      x = dot_general v d contract=[1],[1] : f32[8,4]
      y = mul_or_zero x m : f32[8,4]
      z = reduce_sum y dims=[0] : f32[4]
      aa = dot_general a y contract=[0],[0] : f32[3,4]
      return s, aa, z, w
    }
    ");
}

#[test]
fn the_gradient_of_cross_entropy() {
    let graph = graph(
        [f32([8, 10]), TensorType::new(DType::I32, [8])],
        |[x, targets]| {
            grad(|x: Tensor| {
                let picked = (x * targets.one_hot(10, DType::F32)).sum(-1);
                (x.logsumexp(-1) - picked).mean(..)
            })(x)
        },
    );
    insta::assert_snapshot!(graph, @"
    (a: f32[8,10], b: i32[8]) {
      c = iota dimension=1 : i32[8,10]
      d = broadcast b dims=[0] : i32[8,10]
      e = eq c d : bool[8,10]
      f = convert e : f32[8,10]
      g = stop_gradient a : f32[8,10]
      h = reduce_max g dims=[1] : f32[8]
      i = reshape h : f32[8,1]
      j = abs i : f32[8,1]
      k = constant inf : f32[]
      l = broadcast k dims=[] : f32[8,1]
      m = lt j l : bool[8,1]
      n = constant 0.0 : f32[]
      o = broadcast n dims=[] : f32[8,1]
      p = select m i o : f32[8,1]
      q = broadcast p dims=[0, 1] : f32[8,10]
      r = sub a q : f32[8,10]
      s = exp r : f32[8,10]
      t = reduce_sum s dims=[1] : f32[8]
      u = broadcast n dims=[] : f32[8]
      v = eq t u : bool[8]
      w = constant 1.0 : f32[]
      x = broadcast w dims=[] : f32[8]
      y = select v x t : f32[8]
      z = constant 0.125 : f32[]
      aa = broadcast z dims=[] : f32[8]
      ab = constant -0.125 : f32[]
      ac = select v u aa : f32[8]
      ad = div_or_zero ac y : f32[8]
      ae = select v u ad : f32[8]
      af = broadcast ae dims=[0] : f32[8,10]
      ag = mul_or_zero af s : f32[8,10]
      ah = broadcast ab dims=[] : f32[8,10]
      ai = mul ah f : f32[8,10]
      aj = add ag ai : f32[8,10]
      return aj
    }
    ");
}

#[test]
fn the_gradient_of_gelu_layer_norm() {
    let graph = graph([f32([8, 10])], |[x]| {
        grad(|x: Tensor| {
            let centred = x - x.mean(-1).expand_dims(-1);
            let normal = centred * (centred.square().mean(-1) + 1e-5).rsqrt().expand_dims(-1);
            normal.gelu().sum(..)
        })(x)
    });
    insta::assert_snapshot!(graph, @"
    (a: f32[8,10]) {
      b = reduce_sum a dims=[1] : f32[8]
      c = constant 10.0 : f32[]
      d = broadcast c dims=[] : f32[8]
      e = div b d : f32[8]
      f = reshape e : f32[8,1]
      g = broadcast f dims=[0, 1] : f32[8,10]
      h = sub a g : f32[8,10]
      i = mul h h : f32[8,10]
      j = add h h : f32[8,10]
      k = reduce_sum i dims=[1] : f32[8]
      l = div k d : f32[8]
      m = constant 1e-5 : f32[]
      n = broadcast m dims=[] : f32[8]
      o = add l n : f32[8]
      p = rsqrt o : f32[8]
      q = div p o : f32[8]
      r = constant -0.5 : f32[]
      s = broadcast r dims=[] : f32[8]
      t = mul s q : f32[8]
      u = reshape p : f32[8,1]
      v = broadcast u dims=[0, 1] : f32[8,10]
      w = mul h v : f32[8,10]
      x = mul w w : f32[8,10]
      y = constant 0.071354814 : f32[]
      z = broadcast y dims=[] : f32[8,10]
      aa = mul x z : f32[8,10]
      ab = constant 1.5957692 : f32[]
      ac = broadcast ab dims=[] : f32[8,10]
      ad = add aa ac : f32[8,10]
      ae = mul w ad : f32[8,10]
      af = logistic ae : f32[8,10]
      ag = constant 0.21406445 : f32[]
      ah = broadcast ag dims=[] : f32[8,10]
      ai = mul x ah : f32[8,10]
      aj = add ai ac : f32[8,10]
      ak = mul w aj : f32[8,10]
      al = neg ae : f32[8,10]
      am = logistic al : f32[8,10]
      an = mul af am : f32[8,10]
      ao = mul_or_zero ak an : f32[8,10]
      ap = add af ao : f32[8,10]
      aq = mul_or_zero ap h : f32[8,10]
      ar = mul_or_zero ap v : f32[8,10]
      as = reduce_sum aq dims=[1] : f32[8]
      at = mul_or_zero as t : f32[8]
      au = div at d : f32[8]
      av = broadcast au dims=[0] : f32[8,10]
      aw = mul_or_zero av j : f32[8,10]
      ax = add ar aw : f32[8,10]
      ay = neg ax : f32[8,10]
      az = reduce_sum ay dims=[1] : f32[8]
      ba = div az d : f32[8]
      bb = broadcast ba dims=[0] : f32[8,10]
      bc = add ax bb : f32[8,10]
      return bc
    }
    ");
}

#[test]
fn the_gradient_of_a_scan() {
    let types = [f32([6, 4, 4]), f32([6, 4]), f32([2, 4])];
    let graph = graph(types, |[w, b, h]| {
        grad(|(w, b): (Tensor, Tensor)| {
            let layer = |h: Tensor, (w, b): (Tensor, Tensor)| h + (h.dot(w) + b).gelu() * 0.5;
            Stack((w, b)).scan(h, layer).sum(..)
        })((w, b))
    });
    insta::assert_snapshot!(graph, @"
    (a: f32[6,4,4], b: f32[6,4], c: f32[2,4]) {
      d, e, f = scan c a b length=6 carries=1 xs=2 : f32[2,4], f32[6,2,4], f32[6,2,4] (a: f32[2,4], b: f32[4,4], c: f32[4]) {
        d = dot_general a b contract=[1],[0] : f32[2,4]
        e = broadcast c dims=[1] : f32[2,4]
        f = add d e : f32[2,4]
        g = mul f f : f32[2,4]
        h = constant 0.071354814 : f32[]
        i = broadcast h dims=[] : f32[2,4]
        j = mul g i : f32[2,4]
        k = constant 1.5957692 : f32[]
        l = broadcast k dims=[] : f32[2,4]
        m = add j l : f32[2,4]
        n = mul f m : f32[2,4]
        o = logistic n : f32[2,4]
        p = constant 0.21406445 : f32[]
        q = broadcast p dims=[] : f32[2,4]
        r = mul g q : f32[2,4]
        s = add r l : f32[2,4]
        t = mul f s : f32[2,4]
        u = neg n : f32[2,4]
        v = logistic u : f32[2,4]
        w = mul o v : f32[2,4]
        x = mul_or_zero t w : f32[2,4]
        y = add o x : f32[2,4]
        z = mul_or_zero f o : f32[2,4]
        aa = constant 0.5 : f32[]
        ab = broadcast aa dims=[] : f32[2,4]
        ac = mul z ab : f32[2,4]
        ad = add a ac : f32[2,4]
        return ad, a, y
      }
      g = constant 1.0 : f32[]
      h = broadcast g dims=[] : f32[2,4]
      i, j, k = scan h a e f length=6 carries=1 xs=3 reverse : f32[2,4], f32[6,4,4], f32[6,4] (a: f32[2,4], b: f32[4,4], c: f32[2,4], d: f32[2,4]) {
        e = constant 0.5 : f32[]
        f = broadcast e dims=[] : f32[2,4]
        g = mul a f : f32[2,4]
        h = mul_or_zero g d : f32[2,4]
        i = reduce_sum h dims=[0] : f32[4]
        j = dot_general c h contract=[0],[0] : f32[4,4]
        k = dot_general h b contract=[1],[1] : f32[2,4]
        l = add a k : f32[2,4]
        return l, j, i
      }
      return j, k
    }
    ");
}

#[test]
fn the_gradient_of_a_rematerialized_layer() {
    let graph = graph([f32([4, 4]), f32([2, 4])], |[w, x]| {
        grad(|w: Tensor| remat(|w: Tensor| x.dot(w).sin().dot(w).cos())(w).sum(..))(w)
    });
    insta::assert_snapshot!(graph, @"
    (a: f32[4,4], b: f32[2,4]) {
      c = constant 1.0 : f32[]
      d = broadcast c dims=[] : f32[2,4]
      e = remat a b d recompute : f32[4,4] (a: f32[4,4], b: f32[2,4], c: f32[2,4]) {
        d = dot_general b a contract=[1],[0] : f32[2,4]
        e = sin d : f32[2,4]
        f = cos d : f32[2,4]
        g = dot_general e a contract=[1],[0] : f32[2,4]
        h = sin g : f32[2,4]
        i = neg h : f32[2,4]
        j = mul_or_zero c i : f32[2,4]
        k = dot_general e j contract=[0],[0] : f32[4,4]
        l = dot_general j a contract=[1],[1] : f32[2,4]
        m = mul_or_zero l f : f32[2,4]
        n = dot_general b m contract=[0],[0] : f32[4,4]
        o = add k n : f32[4,4]
        return o
      }
      return e
    }
    ");
}

#[test]
fn the_gradient_of_a_loop_of_rematerialized_layers() {
    let graph = graph([f32([6, 4, 4]), f32([2, 4])], |[w, h]| {
        grad(|w: Tensor| {
            let layer = remat(|(h, w): (Tensor, Tensor)| h.dot(w).tanh().dot(w) + h);
            scan(h, w, |h: Tensor, w: Tensor| (layer((h, w)), ()))
                .0
                .sum(..)
        })(w)
    });
    insta::assert_snapshot!(graph, @"
    (a: f32[6,4,4], b: f32[2,4]) {
      c, d = scan b a length=6 carries=1 xs=1 : f32[2,4], f32[6,2,4] (a: f32[2,4], b: f32[4,4]) {
        c = dot_general a b contract=[1],[0] : f32[2,4]
        d = tanh c : f32[2,4]
        e = dot_general d b contract=[1],[0] : f32[2,4]
        f = add e a : f32[2,4]
        return f, a
      }
      e = constant 1.0 : f32[]
      f = broadcast e dims=[] : f32[2,4]
      g, h = scan f a d length=6 carries=1 xs=2 reverse : f32[2,4], f32[6,4,4] (a: f32[2,4], b: f32[4,4], c: f32[2,4]) {
        d, e = remat c b a recompute : f32[2,4], f32[4,4] (a: f32[2,4], b: f32[4,4], c: f32[2,4]) {
          d = dot_general a b contract=[1],[0] : f32[2,4]
          e = tanh d : f32[2,4]
          f = cosh d : f32[2,4]
          g = constant 1.0 : f32[]
          h = broadcast g dims=[] : f32[2,4]
          i = div h f : f32[2,4]
          j = mul i i : f32[2,4]
          k = dot_general e c contract=[0],[0] : f32[4,4]
          l = dot_general c b contract=[1],[1] : f32[2,4]
          m = mul_or_zero l j : f32[2,4]
          n = dot_general a m contract=[0],[0] : f32[4,4]
          o = add k n : f32[4,4]
          p = dot_general m b contract=[1],[1] : f32[2,4]
          q = add c p : f32[2,4]
          return q, o
        }
        return d, e
      }
      return h
    }
    ");
}

#[test]
fn the_gradient_of_an_attention_head() {
    let types = [f32([2, 8, 4]), f32([2, 8, 4]), f32([2, 8, 4])];
    let graph = graph(types, |[q, k, v]| {
        grad(|(q, k, v): (Tensor, Tensor, Tensor)| {
            let scores = shardax_core::einsum("btd,bsd->bts", [q, k]) * 0.5;
            let mask = Tensor::iota(DType::I32, [8, 8], 0).ge(Tensor::iota(DType::I32, [8, 8], 1));
            let weights = mask.select(scores, -1e30).softmax(-1);
            shardax_core::einsum("bts,bsd->btd", [weights, v])
                .square()
                .sum(..)
        })((q, k, v))
    });
    insta::assert_snapshot!(graph, @"
    (a: f32[2,8,4], b: f32[2,8,4], c: f32[2,8,4]) {
      d = dot_general a b batch=[0],[0] contract=[2],[2] : f32[2,8,8]
      e = constant 0.5 : f32[]
      f = broadcast e dims=[] : f32[2,8,8]
      g = mul d f : f32[2,8,8]
      h = iota dimension=0 : i32[8,8]
      i = iota dimension=1 : i32[8,8]
      j = ge h i : bool[8,8]
      k = constant -1e30 : f32[]
      l = broadcast k dims=[] : f32[2,8,8]
      m = broadcast j dims=[1, 2] : bool[2,8,8]
      n = select m g l : f32[2,8,8]
      o = constant 0.0 : f32[]
      p = broadcast o dims=[] : f32[2,8,8]
      q = stop_gradient n : f32[2,8,8]
      r = reduce_max q dims=[2] : f32[2,8]
      s = reshape r : f32[2,8,1]
      t = abs s : f32[2,8,1]
      u = constant inf : f32[]
      v = broadcast u dims=[] : f32[2,8,1]
      w = lt t v : bool[2,8,1]
      x = broadcast o dims=[] : f32[2,8,1]
      y = select w s x : f32[2,8,1]
      z = broadcast y dims=[0, 1, 2] : f32[2,8,8]
      aa = sub n z : f32[2,8,8]
      ab = exp aa : f32[2,8,8]
      ac = reduce_sum ab dims=[2] : f32[2,8]
      ad = reshape ac : f32[2,8,1]
      ae = eq ad x : bool[2,8,1]
      af = constant 1.0 : f32[]
      ag = broadcast af dims=[] : f32[2,8,1]
      ah = select ae ag ad : f32[2,8,1]
      ai = broadcast ah dims=[0, 1, 2] : f32[2,8,8]
      aj = div ab ai : f32[2,8,8]
      ak = broadcast af dims=[] : f32[2,8,8]
      al = div ak ai : f32[2,8,8]
      am = mul aj al : f32[2,8,8]
      an = dot_general aj c batch=[0],[0] contract=[2],[1] : f32[2,8,4]
      ao = add an an : f32[2,8,4]
      ap = dot_general aj ao batch=[0],[0] contract=[1],[1] : f32[2,8,4]
      aq = dot_general ao c batch=[0],[0] contract=[2],[2] : f32[2,8,8]
      ar = neg aq : f32[2,8,8]
      as = mul_or_zero ar am : f32[2,8,8]
      at = div_or_zero aq ai : f32[2,8,8]
      au = reduce_sum as dims=[2] : f32[2,8]
      av = reshape au : f32[2,8,1]
      aw = select ae x av : f32[2,8,1]
      ax = reshape aw : f32[2,8]
      ay = broadcast ax dims=[0, 1] : f32[2,8,8]
      az = add at ay : f32[2,8,8]
      ba = mul_or_zero az ab : f32[2,8,8]
      bb = select m ba p : f32[2,8,8]
      bc = mul bb f : f32[2,8,8]
      bd = dot_general bc a batch=[0],[0] contract=[1],[1] : f32[2,8,4]
      be = dot_general bc b batch=[0],[0] contract=[2],[1] : f32[2,8,4]
      return be, bd, ap
    }
    ");
}
