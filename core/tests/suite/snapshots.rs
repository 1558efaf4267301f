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
      i = constant 1.0 : f32[]
      j = broadcast i dims=[] : f32[8,4]
      k = mul h h : f32[8,4]
      l = sub j k : f32[8,4]
      m = dot_general h d contract=[1],[0] : f32[8,2]
      n = mul m m : f32[8,2]
      o = add m m : f32[8,2]
      p = reduce_sum n dims=[0, 1] : f32[]
      q = constant 16.0 : f32[]
      r = div p q : f32[]
      s = constant 0.0625 : f32[]
      t = broadcast s dims=[] : f32[8,2]
      u = mul t o : f32[8,2]
      v = dot_general h u contract=[0],[0] : f32[4,2]
      w = dot_general u d contract=[1],[1] : f32[8,4]
      x = mul_or_zero w l : f32[8,4]
      y = reduce_sum x dims=[0] : f32[4]
      z = dot_general a x contract=[0],[0] : f32[3,4]
      return r, z, y, v
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
      y = add w w : f32[8,10]
      z = mul x w : f32[8,10]
      aa = constant 0.044715 : f32[]
      ab = broadcast aa dims=[] : f32[8,10]
      ac = mul z ab : f32[8,10]
      ad = add w ac : f32[8,10]
      ae = constant 0.7978846 : f32[]
      af = broadcast ae dims=[] : f32[8,10]
      ag = mul ad af : f32[8,10]
      ah = constant 0.5 : f32[]
      ai = broadcast ah dims=[] : f32[8,10]
      aj = mul w ai : f32[8,10]
      ak = tanh ag : f32[8,10]
      al = constant 1.0 : f32[]
      am = broadcast al dims=[] : f32[8,10]
      an = mul ak ak : f32[8,10]
      ao = sub am an : f32[8,10]
      ap = add ak am : f32[8,10]
      aq = mul_or_zero aj ao : f32[8,10]
      ar = mul ap ai : f32[8,10]
      as = mul aq af : f32[8,10]
      at = add ar as : f32[8,10]
      au = mul as ab : f32[8,10]
      av = mul_or_zero au x : f32[8,10]
      aw = add at av : f32[8,10]
      ax = mul_or_zero au w : f32[8,10]
      ay = mul_or_zero ax y : f32[8,10]
      az = add aw ay : f32[8,10]
      ba = mul_or_zero az h : f32[8,10]
      bb = mul_or_zero az v : f32[8,10]
      bc = reduce_sum ba dims=[1] : f32[8]
      bd = mul_or_zero bc t : f32[8]
      be = div bd d : f32[8]
      bf = broadcast be dims=[0] : f32[8,10]
      bg = mul_or_zero bf j : f32[8,10]
      bh = add bb bg : f32[8,10]
      bi = neg bh : f32[8,10]
      bj = reduce_sum bi dims=[1] : f32[8]
      bk = div bj d : f32[8]
      bl = broadcast bk dims=[0] : f32[8,10]
      bm = add bh bl : f32[8,10]
      return bm
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
      d, e, f, g = scan c a b length=6 carries=1 xs=2 : f32[2,4], f32[6,2,4], f32[6,2,4], f32[6,2,4] (a: f32[2,4], b: f32[4,4], c: f32[4]) {
        d = dot_general a b contract=[1],[0] : f32[2,4]
        e = broadcast c dims=[1] : f32[2,4]
        f = add d e : f32[2,4]
        g = mul f f : f32[2,4]
        h = mul g f : f32[2,4]
        i = constant 0.044715 : f32[]
        j = broadcast i dims=[] : f32[2,4]
        k = mul h j : f32[2,4]
        l = add f k : f32[2,4]
        m = constant 0.7978846 : f32[]
        n = broadcast m dims=[] : f32[2,4]
        o = mul l n : f32[2,4]
        p = constant 0.5 : f32[]
        q = broadcast p dims=[] : f32[2,4]
        r = mul f q : f32[2,4]
        s = tanh o : f32[2,4]
        t = constant 1.0 : f32[]
        u = broadcast t dims=[] : f32[2,4]
        v = add s u : f32[2,4]
        w = mul r v : f32[2,4]
        x = mul w q : f32[2,4]
        y = add a x : f32[2,4]
        return y, a, d, s
      }
      h = constant 1.0 : f32[]
      i = broadcast h dims=[] : f32[2,4]
      j, k, l = scan i a b e f g length=6 carries=1 xs=5 reverse : f32[2,4], f32[6,4,4], f32[6,4] (a: f32[2,4], b: f32[4,4], c: f32[4], d: f32[2,4], e: f32[2,4], f: f32[2,4]) {
        g = broadcast c dims=[1] : f32[2,4]
        h = add e g : f32[2,4]
        i = mul h h : f32[2,4]
        j = add h h : f32[2,4]
        k = constant 0.044715 : f32[]
        l = broadcast k dims=[] : f32[2,4]
        m = constant 0.7978846 : f32[]
        n = broadcast m dims=[] : f32[2,4]
        o = constant 0.5 : f32[]
        p = broadcast o dims=[] : f32[2,4]
        q = mul h p : f32[2,4]
        r = constant 1.0 : f32[]
        s = broadcast r dims=[] : f32[2,4]
        t = mul f f : f32[2,4]
        u = sub s t : f32[2,4]
        v = add f s : f32[2,4]
        w = mul a p : f32[2,4]
        x = mul_or_zero w q : f32[2,4]
        y = mul_or_zero w v : f32[2,4]
        z = mul_or_zero x u : f32[2,4]
        aa = mul y p : f32[2,4]
        ab = mul z n : f32[2,4]
        ac = add aa ab : f32[2,4]
        ad = mul ab l : f32[2,4]
        ae = mul_or_zero ad i : f32[2,4]
        af = add ac ae : f32[2,4]
        ag = mul_or_zero ad h : f32[2,4]
        ah = mul_or_zero ag j : f32[2,4]
        ai = add af ah : f32[2,4]
        aj = reduce_sum ai dims=[0] : f32[4]
        ak = dot_general d ai contract=[0],[0] : f32[4,4]
        al = dot_general ai b contract=[1],[1] : f32[2,4]
        am = add a al : f32[2,4]
        return am, ak, aj
      }
      return k, l
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
          f = constant 1.0 : f32[]
          g = broadcast f dims=[] : f32[2,4]
          h = mul e e : f32[2,4]
          i = sub g h : f32[2,4]
          j = dot_general e c contract=[0],[0] : f32[4,4]
          k = dot_general c b contract=[1],[1] : f32[2,4]
          l = mul_or_zero k i : f32[2,4]
          m = dot_general a l contract=[0],[0] : f32[4,4]
          n = add j m : f32[4,4]
          o = dot_general l b contract=[1],[1] : f32[2,4]
          p = add c o : f32[2,4]
          return p, n
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
      ak = div aj ai : f32[2,8,8]
      al = dot_general aj c batch=[0],[0] contract=[2],[1] : f32[2,8,4]
      am = add al al : f32[2,8,4]
      an = dot_general aj am batch=[0],[0] contract=[1],[1] : f32[2,8,4]
      ao = dot_general am c batch=[0],[0] contract=[2],[2] : f32[2,8,8]
      ap = neg ao : f32[2,8,8]
      aq = mul_or_zero ap ak : f32[2,8,8]
      ar = div_or_zero ao ai : f32[2,8,8]
      as = reduce_sum aq dims=[2] : f32[2,8]
      at = reshape as : f32[2,8,1]
      au = select ae x at : f32[2,8,1]
      av = reshape au : f32[2,8]
      aw = broadcast av dims=[0, 1] : f32[2,8,8]
      ax = add ar aw : f32[2,8,8]
      ay = mul_or_zero ax ab : f32[2,8,8]
      az = select m ay p : f32[2,8,8]
      ba = mul az f : f32[2,8,8]
      bb = dot_general ba a batch=[0],[0] contract=[1],[1] : f32[2,8,4]
      bc = dot_general ba b batch=[0],[0] contract=[2],[1] : f32[2,8,4]
      return bc, bb, an
    }
    ");
}
