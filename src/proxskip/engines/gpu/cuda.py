"""The CUDA C++ source of the GPU engine, compiled at run time for the shape of the problem at hand.

Every client's work is shared by a *group* of thread blocks; each block owns a slice of the client's rows. A step is

    rows     z_j = slope(a_j' x)              for the block's rows           (gather from x)
    columns  g_c = sum_j a_jc z_j             over the block's rows          (gather from z; nothing is scattered)
    meet     x  <- x - gamma (sum of the blocks' g + reg x - h)              (in the order of the blocks)

Both gathers read *tiles* (see ``tiles``): 32 lanes, each a run of packed indices, 1 to 32 lanes to an output, the sums
of the lanes joined by a butterfly. A slice's tiles are copied into shared memory once and read by all K steps. A group
is one block; or a thread-block cluster, whose blocks push their parts into each other's shared memory and count the
bytes that arrive; or, for few large clients, any number of blocks that meet in global memory. A minibatch of many of a
client's rows reads tiles too, with weight zero for the rows that are not in it. Small minibatches, and clients of a few
rows, go row by row: margins by eight lanes per row, then every warp adds its rows to a gradient of its own, and the
warps' gradients are added in order. No float is ever added atomically, so that every run gives the same bytes.
The local steps may use fused multiply-adds; means and the arithmetic of the halves may not, since their bytes are those
of the CPU: ``__dmul_rn`` and ``__dadd_rn`` are never fused.

A launch can hold a whole communication round. Then what a client begins with is computed from what it remembers, the
blocks (as many as are on the card at once, each group with several clients in turn if need be) meet when all of them
are done, and together they take the means and do the arithmetic of server and clients that follows: see ``Round``.

A block's shared memory, from its start: x (with a zero after each class), h, reg; the two inboxes of a cluster; then,
for tiles, the slice's tiles, indices, values, labels, weights and columns' numbers, and z; or, row by row, the starts,
lengths and slopes of a chunk of rows, and a gradient for each warp that writes; then, for minibatches, the numbers and
the table of their draws. What does not fit lies in global memory, and macros say so. When the steps are done the same
memory holds the products of a mean.

Macros: REAL, INDEX, UNIT (all stored values are one), LOSS (0 logistic, 1 squared, 2 softmax), CL (blocks per cluster),
GRID (groups meet in global memory), ROWS (row by row), DG (data read from global memory), SG (x and h there too), ZG (z
there too), DRAW (minibatches), DRAWG (their table is in global memory), STAGED (the first
STAGE entries of a minibatch's rows are read in the step before), DRAWERS (warps that draw and do nothing else),
THREADS, PACK, TAIL (the launch holds a whole round), BLOCKS (that a multiprocessor should then hold).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from proxskip.links.sums import SUM_BLOCK

MAX_CLIENTS_BY_COLUMNS = 2 * SUM_BLOCK
"""Clients up to which blocks share the end of a round by columns alone; beyond, by clients too, and meet more often."""
STAGED_NUMBERS = 8 * SUM_BLOCK
"""Numbers that a block holds in shared memory while it sums them."""
LOSSES = {"logistic": 0, "squared": 1, "softmax": 2}

PLAN = (
    "F", "Q", "reg", "reg_stride", "meta", "row_tiles", "row_idx", "row_val", "col_tiles", "col_idx", "col_val", "b",
    "w", "colmap", "row_warps", "col_warps", "batch", "row0", "indptr", "indices", "values", "labels", "shares",
    "chunk", "writers", "part", "xg", "hg", "zg", "zstride", "privg", "counters", "G", "groups", "numbers",
    "most_draws", "table_size", "taken", "drawg", "bits", "marks",
)  # fmt: skip
"""The entries of the plan, one int64 each: sizes, and addresses on the device."""

NATURAL = r"""
// one of the two powers of two around v, by the random bits of w: links.codecs.Natural, in whole numbers like it
__device__ __forceinline__ double natural(double v, double w) {
    const unsigned long long raw = __double_as_longlong(v), word = __double_as_longlong(w);
    const unsigned long long exponent = raw >> 52 & 0x7FF, mantissa = raw & 0xFFFFFFFFFFFFFull;
    unsigned long long power = exponent + ((word >> 12) < mantissa);
    if (exponent == 2047 || power > 1150) power = 2047;  // not finite, or rounded to 2^128
    // below 2^-126 there is no power of two left but 0 and 2^-126 itself
    const double above = fabs(v) * 8.507059173023462e37, drawn = (double)(word >> 11) * 1.1102230246251565e-16;
    if (exponent <= 896) power = drawn < above ? 897 : 0;
    return __longlong_as_double((raw >> 63) << 63 | power << 52);
}
"""

SOURCE = (
    NATURAL
    + r"""
typedef REAL real;
typedef INDEX index_t;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
#define WARPS (THREADS / 32)
#define WORKERS (WARPS - DRAWERS)  // warps that do not draw alone
#define FULL 0xffffffffu  // all lanes of a warp
// PACK entries of a lane, loaded at once
struct __align__(PACK * sizeof(index_t)) Pack { index_t i[PACK]; };
struct __align__(16) Values { real v[PACK]; };
#ifndef __cluster_dims__
#define __cluster_dims__(...) __attribute__((cluster_dims(__VA_ARGS__)))
#endif

// 1 / (1 + exp(t)) to an ulp or two, in few dependent steps: Taylor to degree 13 by Estrin, Newton for the reciprocal
__device__ __forceinline__ double falling(double t) {
    t = t > 700.0 ? 700.0 : t < -700.0 ? -700.0 : t;  // NaN stays
    // exp(t) = 2^n exp(r): adding 1.5 * 2^52 rounds t / ln 2 to the whole number n, kept in the low bits of k
    const double shift = 6755399441055744.0;
    const double k = fma(t, 1.4426950408889634, shift);
    const double n = k - shift;
    const double r = fma(n, -1.9082149292705877e-10, fma(n, -0.6931471803691238, t)), r2 = r * r, r4 = r2 * r2;
    const double p0 = 1.0 + r, p1 = fma(r, 1.0 / 6, 0.5), p2 = fma(r, 1.0 / 120, 1.0 / 24);
    const double p3 = fma(r, 1.0 / 5040, 1.0 / 720), p4 = fma(r, 1.0 / 362880, 1.0 / 40320);
    const double p5 = fma(r, 1.0 / 39916800, 1.0 / 3628800), p6 = fma(r, 1.0 / 6227020800.0, 1.0 / 479001600);
    const double q0 = fma(r2, p1, p0), q1 = fma(r2, p3, p2), q2 = fma(r2, p5, p4);
    const double high = fma(r4, p6, q2), e = fma(r4 * r4, high, fma(r4, q1, q0));
    // 2^n from n in the exponent's bits
    const double power = __hiloint2double((__double2loint(k) + 1023) << 20, 0);
    const double a = fma(e, power, 1.0);
    // 1 / a: an approximation of some 20 bits, then Newton's steps, each of which doubles them
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(a));
    y = fma(y, fma(-a, y, 1.0), y);
    return fma(y, fma(-a, y, 1.0), y);
}
__device__ __forceinline__ float falling(float t) { return 1.0f / (1.0f + expf(t)); }

// the loss's derivative in its margin z, times the row's weight
__device__ __forceinline__ real slope(real z, real b, real w) {
    return LOSS == 0 ? -b * w * falling(b * z) : w * (z - b);
}

// scores of one row in s[0], s[stride], ...: replaced by w (softmax - onehot(label))
__device__ void softmax_row(real* s, i64 stride, int Q, int label, real w) {
    real top = s[0], total = 0;
    for (int q = 1; q < Q; ++q) top = s[q * stride] > top ? s[q * stride] : top;
    for (int q = 0; q < Q; ++q) {
        real e = exp(s[q * stride] - top);
        s[q * stride] = e;
        total += e;
    }
    for (int q = 0; q < Q; ++q) s[q * stride] = w * (s[q * stride] / total - (q == label ? (real)1 : (real)0));
}

// ---- barriers ----------------------------------------------------------------------------------------------------
// all blocks of a cluster; what one wrote before, the others read after
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// the address of p's counterpart in the shared memory of the cluster's block `rank`
__device__ __forceinline__ u32 peer(const void* p, u32 rank) {
    u32 a = (u32)__cvta_generic_to_shared(p), out;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(rank));
    return out;
}
// a store into another block's shared memory that counts its bytes off that block's barrier
__device__ __forceinline__ void push(u32 address, double v, u32 bell) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f64 [%0], %1, [%2];"
                 ::"r"(address), "d"(v), "r"(bell) : "memory");
}
__device__ __forceinline__ void push(u32 address, float v, u32 bell) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];"
                 ::"r"(address), "f"(v), "r"(bell) : "memory");
}
// this block's barrier opens when this number of bytes has been pushed to it
__device__ __forceinline__ void expect(u64* bell, u32 bytes) {
    asm volatile("{\n.reg .b64 t;\nmbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], %1;\n}"
                 ::"r"((u32)__cvta_generic_to_shared(bell)), "r"(bytes) : "memory");
}
// until the barrier's phase of this parity is over
__device__ __forceinline__ void await(u64* bell, u32 parity) {
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra again;\n}"
                 ::"r"((u32)__cvta_generic_to_shared(bell)), "r"(parity) : "memory");
}
// A meeting of blocks in global memory: each adds one to a counter, and waits until it has reached the target. Counters
// only grow during a launch (each meeting has a target of its own), so that none is reset while a block reads it. All
// blocks must be on the card at once, or those that wait would keep the others out.
__device__ __forceinline__ void arrive(u32* counter) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();  // what the block wrote is visible before it is counted
        atomicAdd(counter, 1u);
    }
}
__device__ __forceinline__ void gather_all(u32* counter, u32 target) {
    if (threadIdx.x == 0) {
        u32 seen;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
        } while ((int)(seen - target) < 0);  // right even where the counter wraps around
        __threadfence();
    }
    __syncthreads();
}
__device__ void group_sync(u32* counter, u32 target) {
    arrive(counter);
    gather_all(counter, target);
}

// ---- the gather: one output for each group of 2^log lanes ----------------------------------------------------------
// x in global memory is written by other blocks, so it is read from the second-level cache, which all share
__device__ __forceinline__ real look(const real* x, i64 i) {
#if SG
    return __ldcg(x + i);
#else
    return x[i];
#endif
}
// A tile: x = its first pack (in rows of 32), y = packs per lane, z = outputs << 3 | log2(lanes per output), w = its
// first output. Pack e of all 32 lanes is contiguous, so that a warp reads it in one go. Two sums take turns, since an
// addition waits for the one before. After the butterfly all lanes of an output hold the same sum.
template <bool X>
__device__ __forceinline__ real gather(const index_t* idx, const real* val, int4 tile, int lane, const real* src) {
    const Pack* p = (const Pack*)idx + (i64)tile.x * 32 + lane;
    real s[2] = {0, 0};
#if !UNIT
    const real* v = val + ((i64)tile.x * 32 + lane) * PACK;
#endif
#pragma unroll 2
    for (int e = 0; e < tile.y; ++e) {
        Pack q = p[e * 32];
#if !UNIT
        real f[PACK];
        for (int k = 0; k < PACK; ++k) f[k] = v[e * 32 * PACK + k];
#endif
#pragma unroll
        for (int k = 0; k < PACK; ++k) {
            real a = X ? look(src, q.i[k]) : src[q.i[k]];
#if UNIT
            s[k & 1] += a;
#else
            s[k & 1] += a * f[k];
#endif
        }
    }
    real sum = s[0] + s[1];
    for (int o = 1; o < (1 << (tile.z & 7)); o <<= 1) sum += __shfl_xor_sync(FULL, sum, o);
    return sum;
}

// ---- minibatches, see randomness.py ---------------------------------------------------------------------------------
__device__ void philox(u32 c0, u32 c1, u32 c2, u32 c3, u64 seed, u32* out) {
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
    for (int i = 0; i < 10; ++i) {
        u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
        u32 n0 = (u32)(p1 >> 32) ^ c1 ^ k0, n2 = (u32)(p0 >> 32) ^ c3 ^ k1;
        c1 = (u32)p1; c3 = (u32)p0; c0 = n0; c2 = n2;
        k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    out[0] = c0; out[1] = c1; out[2] = c2; out[3] = c3;
}

// Floyd's algorithm for n of m rows. Draw i has a number from 0 to m - n + i; it takes that row, unless the
// row is taken, and then its last row, m - n + i. All draws are resolved at once: a table with open addressing holds
// the first draw of every number, and whether a row is taken follows from it. An entry is a draw and the step's mark:
// what earlier steps left is free, so that the table is made empty once in `marks` steps only.
#define NOBODY 0xffffffffu
#if DRAWG
#define PEEK(p) __ldcg(p)  // other blocks write it: read from the second-level cache
#else
#define PEEK(p) (*(const volatile u32*)(p))
#endif
struct Draws {
    u32 *numbers, *table, *taken;
    u32 mask, m, n, bits, marks, mark;
};
// draw i has number v: the first of equal numbers stays, in whatever order they come
__device__ __forceinline__ void enter(const Draws& d, u32 i, u32 v) {
    *(volatile u32*)(d.numbers + i) = v;
#if DRAWG
    __threadfence();
#else
    __threadfence_block();
#endif
    const u32 entry = d.mark << d.bits | i;
    for (u32 s = v & d.mask;; s = (s + 1) & d.mask) {
        u32 other = PEEK(d.table + s);
        while (other >> d.bits != d.mark) {
            const u32 seen = atomicCAS(d.table + s, other, entry);
            if (seen == other) return;
            other = seen;
        }
        if (PEEK(d.numbers + (other & ((1u << d.bits) - 1))) == v) {
            atomicMin(d.table + s, entry);
            return;
        }
    }
}
// all draws of a step into the table, by threads `me` of `all`
__device__ void draw_all(const Draws& d, u32 step, u32 round, u32 client, u64 seed, u32 me, u32 all) {
    const u32 blocks = (d.n + 3) / 4;
    for (u32 i = me; i < d.n; i += all) {
        // four draws share a block of words, which each of their threads computes: that is quicker than to hand it on
        const u32 r = (i >= blocks) + (i >= 2 * blocks) + (i >= 3 * blocks), side = d.m - d.n + 1 + i;
        u32 words[4];
        philox(i - r * blocks, step, round, client, seed, words);
        u64 product = (u64)(r < 2 ? r ? words[1] : words[0] : r == 2 ? words[2] : words[3]) * side;
        // rare: a word that would favor some numbers is drawn again
        if ((u32)product < side) {
            const u32 least = (0u - side) % side;
            u32 more[4];
            for (u32 attempt = 0; (u32)product < least; ++attempt) {
                if (attempt % 4 == 0)
                    philox(0x40000000u | i, step, round, client, seed + ((u64)(attempt / 4) << 32), more);
                product = (u64)more[attempt % 4] * side;
            }
        }
        enter(d, i, (u32)(product >> 32));
    }
}
__device__ u32 first_draw(const Draws& d, u32 v) {
    for (u32 s = v & d.mask;; s = (s + 1) & d.mask) {
        const u32 entry = PEEK(d.table + s), i = entry & ((1u << d.bits) - 1);
        if (entry >> d.bits != d.mark) return NOBODY;
        if (PEEK(d.numbers + i) == v) return i;
    }
}
// whether draw i takes its last row: its number was drawn before, or is the last row of an earlier draw that took it
__device__ bool takes_last(const Draws& d, u32 i) {
    const u32 low = d.m - d.n;
    while (true) {
        const u32 v = PEEK(d.numbers + i);
        if (v == low + i || first_draw(d, v) < i) return true;
        if (v < low) return false;
        i = v - low;
    }
}
__device__ u32 row_of(const Draws& d, u32 i) { return takes_last(d, i) ? d.m - d.n + i : PEEK(d.numbers + i); }
__device__ bool is_drawn(const Draws& d, u32 row) {
    const u32 low = d.m - d.n;
    return first_draw(d, row) != NOBODY || (row >= low && takes_last(d, row - low));
}

// ---- means -------------------------------------------------------------------------------------------------------
// sum of w_i up(i, k) over clients first <= i < last, one after another in blocks of SUM_BLOCK, then the blocks, with
// the CPU's bytes; thread c has that of column k0 + c. All products are in shared memory before they are added.
template <class Up>
__device__ double in_order(double* stage, const double* w, int first, int last, int k0, int columns, Up up) {
    const int rows = last - first, size = rows * columns;
    // four loads on their way at a time
    for (int base = threadIdx.x; base < size; base += 4 * THREADS) {
        double v[4];
#pragma unroll
        for (int u = 0; u < 4; ++u) {
            const int e = base + u * THREADS, i = first + e / columns;
            if (e < size) v[u] = __dmul_rn(w[i], up(i, k0 + e % columns));
        }
#pragma unroll
        for (int u = 0; u < 4; ++u)
            if (base + u * THREADS < size) stage[base + u * THREADS] = v[u];
    }
    __syncthreads();
    // thread (s, c): block s of clients, column c
    const int sums = (rows + SUM_BLOCK - 1) / SUM_BLOCK, s = threadIdx.x / columns, c = threadIdx.x % columns;
    const int end = min((s + 1) * SUM_BLOCK, rows);
    double total = 0;
#pragma unroll 8
    for (int r = s * SUM_BLOCK; r < end; ++r) total = __dadd_rn(total, stage[r * columns + c]);
    __syncthreads();
    if (sums > 1) {
        if (s < sums) stage[threadIdx.x] = total;
        __syncthreads();
        total = 0;
        for (int b = 0; b < sums; ++b) total = __dadd_rn(total, stage[b * columns + c]);
        __syncthreads();
    }
    return total;
}

// ---- one communication round of local steps ------------------------------------------------------------------------
enum {
    F_, Q_, REG, REG_STRIDE, META, ROW_TILES, ROW_IDX, ROW_VAL, COL_TILES, COL_IDX, COL_VAL, B_, W_, COLMAP, ROW_WARPS,
    COL_WARPS, BATCH, ROW0, INDPTR, INDICES, VALUES, LABELS, SHARES, CHUNK, WRITERS, PART, XG, HG, ZG_, ZSTRIDE, PRIVG,
    COUNTERS, G_, GROUPS, NUMBERS, MOST_DRAWS, TABLE_SIZE, TAKEN, DRAWG_, BITS, MARKS
};

// the next piece of shared memory, 16 bytes aligned
__device__ __forceinline__ char* take(char*& top, i64 bytes) {
    char* here = top;
    top += (bytes + 15) / 16 * 16;
    return here;
}
// begin to copy global memory there, 16 bytes per thread at a time, without going through registers
__device__ __forceinline__ char* load(char*& top, const void* from, i64 bytes) {
    char* to = take(top, bytes);
    const u32 there = (u32)__cvta_generic_to_shared(to);
    for (i64 i = (i64)threadIdx.x * 16; i < bytes; i += THREADS * 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(there + (u32)i), "l"((const char*)from + i));
    return to;
}
__device__ __forceinline__ void loaded() { asm volatile("cp.async.wait_all;" ::: "memory"); }

#if TAIL
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
#else
extern "C" __global__ void __launch_bounds__(THREADS)
#endif
#if CL > 1
__cluster_dims__(CL, 1, 1)
#endif
descend(const i64* plan, /*GIVEN*/, const int* Ks, int K1, const int* members, const int* order, double* out,
        int count, int want_gradient, const u64* seeds, u64 seed1, const u32* rounds, u32 round1,
        const u32* steps0, u32 step01, double pull) {
    extern __shared__ __align__(16) char memory[];
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    // Q classes of F features each (one class unless the loss is softmax); F1 leaves room for a zero after each class
    const int F = (int)plan[F_], Q = LOSS == 2 ? (int)plan[Q_] : 1, d = F * Q, F1 = F + 1;
#if GRID
    const int G = (int)plan[G_], groups = (int)plan[GROUPS], group = blockIdx.x / G, rank = blockIdx.x % G;
    u32* counter = (u32*)plan[COUNTERS] + group;
    u32 target = 0;
#else
    const int G = CL, groups = gridDim.x / CL, group = blockIdx.x / CL, rank = blockIdx.x % CL;
#endif
#if CL > 1
    // a barrier for each inbox; `met` counts the meetings of this launch
    __shared__ __align__(8) u64 bells[2];
    if (tid == 0) {
        for (int i = 0; i < 2; ++i)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"((u32)__cvta_generic_to_shared(bells + i)));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    u32 met = 0;
#endif
    // a group takes one client after another, those with many steps first
    for (int at = group; at < count; at += groups) {
        const int j = order ? order[at] : at;
        const int client = members ? members[j] : j;
        const int K = Ks ? Ks[j] : K1;
        const int i = j;
        const i64 row = client;
        const real gamma = (real)(/*GAMMA*/);
        const double* reg_in = (const double*)plan[REG] + client * plan[REG_STRIDE];
        char* top = memory;

        // -- x, h, reg: first, so that they lie at the same place in every block of a cluster
#if SG
        real* x = (real*)plan[XG] + (i64)group * Q * F1;
        real* h = (real*)plan[HG] + (i64)group * 2 * d;
        real* reg = h + d;
        const int mine = rank * THREADS + tid, all = G * THREADS;
#else
        real* x = (real*)take(top, (i64)Q * F1 * sizeof(real));
        real* h = (real*)take(top, (i64)d * sizeof(real));
        real* reg = (real*)take(top, (i64)d * sizeof(real));
        const int mine = tid, all = THREADS;
#endif
        for (int k = mine; k < d; k += all) {
            const i64 t = (i64)i * d + k;
            x[LOSS == 2 ? k / F * F1 + k % F : k] = (real)(/*X*/);
            h[k] = (real)(/*H*/);
            reg[k] = (real)(reg_in[k] + pull);
        }
        for (int q = mine; q < Q; q += all) x[q * F1 + F] = 0;
#if CL > 1
        // two inboxes in turn: a block that is a step ahead fills the one that no block reads any more
        real* inbox = (real*)take(top, (i64)2 * CL * d * sizeof(real));
        int turn = met & 1;
#endif

        // -- the block's slice of the client's data
        const i64* meta = (const i64*)plan[META] + ((i64)client * G + rank) * 10;
#if ROWS
        // row by row: rows q0 .. q1-1 of the client's m, or of the batch, are this block's
        const i64 first = ((const i64*)plan[ROW0])[client], m = ((const i64*)plan[ROW0])[client + 1] - first;
        const i64* indptr = (const i64*)plan[INDPTR] + first;
        const index_t* indices = (const index_t*)plan[INDICES];
        const real* values = (const real*)plan[VALUES];
        const real* labels = (const real*)plan[LABELS] + first;
        const real* shares = (const real*)plan[SHARES] + first;
        const int batch = want_gradient ? 0 : (int)plan[BATCH], chunk = (int)plan[CHUNK], writers = (int)plan[WRITERS];
        // of more than half of the rows, all are read, and those that are drawn are left out
        const bool rest = DRAW && 2 * (i64)batch > m;
        const i64 taken = batch && !rest ? batch : m;
        const i64 q0 = taken * rank / G, q1 = taken * (rank + 1) / G;
        // starts, lengths and labels of this step's rows; staged, those of the next step too, in turn
        i64* starts = (i64*)take(top, (1 + STAGED) * chunk * 8);
        int* lengths = (int*)take(top, (1 + STAGED) * chunk * 4);
        real* zs = (real*)take(top, (i64)Q * chunk * sizeof(real));
#if STAGED
        // the first STAGE entries of every row of the minibatch
        real* row_labels = (real*)take(top, 2 * chunk * sizeof(real));
        index_t* staged_idx = (index_t*)take(top, chunk * STAGE * sizeof(index_t));
        real* staged_val = UNIT ? (real*)0 : (real*)take(top, chunk * STAGE * sizeof(real));
        const int size = (int)(q1 - q0);
#endif
#else
        // tiles: the slice has m rows; each warp's tiles are row_tiles[ra..rz-1] and col_tiles[ca..cz-1]
        const int m = (int)meta[9];
        const i64 rt0 = meta[0], rts = meta[1], re0 = meta[2], res = meta[3], ct0 = meta[4], cts = meta[5],
                  ce0 = meta[6], ces = meta[7], b0 = meta[8];
        const i64 slice = (i64)client * G + rank;
        const int cols8 = (F + 7) / 8 * 8, m4 = (m + 3) / 4 * 4;
        const int4* row_tiles = (const int4*)plan[ROW_TILES] + rt0;
        const int4* col_tiles = (const int4*)plan[COL_TILES] + ct0;
        const index_t* row_idx = (const index_t*)plan[ROW_IDX] + re0 * 32 * PACK;
        const index_t* col_idx = (const index_t*)plan[COL_IDX] + ce0 * 32 * PACK;
        const real* row_val = UNIT ? (const real*)0 : (const real*)plan[ROW_VAL] + re0 * 32 * PACK;
        const real* col_val = UNIT ? (const real*)0 : (const real*)plan[COL_VAL] + ce0 * 32 * PACK;
        const real* b = (const real*)plan[B_] + b0;
        const real* w = (const real*)plan[W_] + b0;
        const index_t* colmap = (const index_t*)plan[COLMAP] + slice * cols8;
        const u32* numbers = (const u32*)plan[NUMBERS] + (DRAW ? b0 : 0);  // each row's number among its client's
        const int* row_warps = (const int*)plan[ROW_WARPS] + slice * (WORKERS + 1);
        const int* col_warps = (const int*)plan[COL_WARPS] + slice * (WORKERS + 1);
        const bool works = warp < WORKERS;
        const int ra = works ? row_warps[warp] : 0, rz = works ? row_warps[warp + 1] : 0;
        const int ca = works ? col_warps[warp] : 0, cz = works ? col_warps[warp + 1] : 0;
#if !DG
        row_tiles = (const int4*)load(top, row_tiles, rts * 16);
        col_tiles = (const int4*)load(top, col_tiles, cts * 16);
        row_idx = (const index_t*)load(top, row_idx, res * 32 * PACK * sizeof(index_t));
        col_idx = (const index_t*)load(top, col_idx, ces * 32 * PACK * sizeof(index_t));
#if !UNIT
        row_val = (const real*)load(top, row_val, res * 32 * PACK * sizeof(real));
        col_val = (const real*)load(top, col_val, ces * 32 * PACK * sizeof(real));
#endif
        if (LOSS != 0) b = (const real*)load(top, b, m4 * sizeof(real));
        w = (const real*)load(top, w, m4 * sizeof(real));
        colmap = (const index_t*)load(top, colmap, cols8 * sizeof(index_t));
        if (DRAW) numbers = (const u32*)load(top, numbers, m4 * 4);
#endif
        const i64 zrow = m + 1;  // a zero after each class, which the columns' missing entries read
#if ZG
        real* z = (real*)plan[ZG_] + blockIdx.x * plan[ZSTRIDE];
#else
        real* z = (real*)take(top, Q * zrow * sizeof(real));
#endif
        for (int q = tid; q < Q; q += THREADS) z[q * zrow + m] = 0;
        loaded();
#endif

#if ROWS
        // a gradient for each of `writers` warps, zero between the steps
#if SG
        real* own = (real*)plan[PRIVG] + (i64)blockIdx.x * writers * d;
#else
        real* own = (real*)take(top, (i64)writers * d * sizeof(real));
#endif
        for (i64 c = tid; c < (i64)writers * d; c += THREADS) own[c] = 0;
#endif
#if DRAW
        // the draws of a step do not depend on x: they are made while the steps before are done
#if !ROWS
        const i64* row0 = (const i64*)plan[ROW0] + client;
        const i64 rows_of_client = row0[1] - row0[0];
        const i64 batch = plan[BATCH];
        const bool rest = 2 * batch > rows_of_client;
#else
        const i64 rows_of_client = m;
#endif
        Draws draws;
        draws.m = (u32)rows_of_client;
        draws.n = (u32)(rest ? rows_of_client - batch : batch);
        draws.mask = (u32)plan[TABLE_SIZE] - 1;
        draws.bits = (u32)plan[BITS];
        draws.marks = (u32)plan[MARKS];
#if DRAWG
        draws.numbers = (u32*)plan[DRAWG_] + (i64)group * (plan[MOST_DRAWS] + plan[TABLE_SIZE] + plan[TAKEN]);
        draws.table = draws.numbers + plan[MOST_DRAWS];
        draws.taken = draws.table + plan[TABLE_SIZE];
        const u32 drawer = rank * THREADS + tid, drawers = G * THREADS;
#else
        draws.numbers = (u32*)take(top, plan[MOST_DRAWS] * 4);
        draws.table = (u32*)take(top, plan[TABLE_SIZE] * 4);
        draws.taken = (u32*)take(top, plan[TAKEN] * 4);
        const u32 drawer = THREADS - 1 - tid, drawers = DRAWERS ? 32 * DRAWERS : THREADS;
#endif
        auto meet_drawers = [&]() {
#if DRAWG
            group_sync(counter, target += G);
#else
            __syncthreads();
#endif
        };
        auto draw = [&](int k) {
            draws.mark = (u32)k % draws.marks;
            if (draws.mark == 0) {
                // marks begin anew: no entry may have one; NOBODY has none
                meet_drawers();
                for (u32 s = drawer; s <= draws.mask; s += THREADS * (DRAWG ? G : 1)) draws.table[s] = NOBODY;
                for (u32 s = drawer; s < (u32)plan[TAKEN]; s += THREADS * (DRAWG ? G : 1)) draws.taken[s] = NOBODY;
                meet_drawers();
            }
            if (drawer < drawers)
                draw_all(draws, (steps0 ? steps0[j] : step01) + (u32)k, rounds ? rounds[j] : round1, client,
                         seeds ? seeds[j] : seed1, drawer, drawers);
        };
#if !ROWS
        // the drawn rows have the step's mark
        auto resolve = [&]() {
            const u32 stop = drawer < drawers ? draws.n : 0;
            for (u32 i = drawer; i < stop; i += drawers) draws.taken[row_of(draws, i)] = draws.mark;
        };
#endif
#if STAGED
        // where the rows of step k begin, and how long they are
        auto find = [&](int k) {
            for (int i = drawer; i < size && drawer < drawers; i += drawers) {
                const i64 r = row_of(draws, (u32)(q0 + i)), e0 = indptr[r];
                const int to = (k & 1) * chunk + i;
                starts[to] = e0;
                lengths[to] = (int)(indptr[r + 1] - e0);
                row_labels[to] = labels[r];
            }
        };
        // their first entries: eight lanes per row, STAGE / 8 entries of a lane, read (all at once) and then stored
        index_t got_idx[STAGE / 8];
        real got_val[STAGE / 8];
        auto fetch_rows = [&](int k, int i0) {
            const int i = i0 + (tid >> 3), from = (k & 1) * chunk + i, length = i < size ? lengths[from] : 0;
#pragma unroll
            for (int u = 0; u < STAGE / 8; ++u) {
                const int e = (lane & 7) + 8 * u;
                if (e < length) {
                    got_idx[u] = indices[starts[from] + e];
                    if (!UNIT) got_val[u] = values[starts[from] + e];
                }
            }
        };
        auto stage_rows = [&](int k, int i0) {
            const int i = i0 + (tid >> 3), length = i < size ? lengths[(k & 1) * chunk + i] : 0;
#pragma unroll
            for (int u = 0; u < STAGE / 8; ++u) {
                const int e = (lane & 7) + 8 * u;
                if (e < length) {
                    staged_idx[i * STAGE + e] = got_idx[u];
                    if (!UNIT) staged_val[i * STAGE + e] = got_val[u];
                }
            }
        };
#endif
        if (batch && K > 0) draw(0);
#endif
#if GRID
        real* part = (real*)plan[PART] + (i64)group * G * d;
        real* shared_x = (real*)plan[XG] + (i64)group * Q * F1;
        group_sync(counter, target += G);
#elif CL > 1
        cluster_sync();
#else
        __syncthreads();
#endif
#if DRAW
#if !ROWS
        if (K > 0) resolve();
        meet_drawers();
#elif STAGED
        if (K > 0) {
            find(0);
            __syncthreads();
            for (int i0 = 0; i0 < size; i0 += THREADS / 8) {
                fetch_rows(0, i0);
                stage_rows(0, i0);
            }
            __syncthreads();
        }
#endif
#endif

        // the local step  x <- x - gamma (g + reg x - h)  in column c; or the gradient alone
        auto update = [&](int c, real g) {
            int i = LOSS == 2 ? c / F * F1 + c % F : c;
            real now = look(x, i);
#if SG
            g += __ldcg(reg + c) * now;
            now = want_gradient ? g : now - gamma * (g - __ldcg(h + c));
#else
            g += reg[c] * now;
            now = want_gradient ? g : now - gamma * (g - h[c]);
#endif
            x[i] = now;
#if GRID && !SG
            __stcg(shared_x + i, now);
#endif
        };
        // hand on the block's part g of column c, which `wide` lanes hold, this one being number `sub`: to the parts in
        // global memory; to the inboxes of all blocks of the cluster, dealt to the lanes; or, where the group is one
        // block, to the step at once: no warp reads x any more, since the columns read z, and a column has one writer
        auto emit = [&](int c, real g, int sub, int wide) {
#if GRID
            if (sub == 0) __stcg(part + (i64)rank * d + c, g);
#elif CL > 1
            real* slot = inbox + (turn * CL + rank) * d + c;
            for (int r = sub; r < CL; r += wide) push(peer(slot, r), g, peer(bells + turn, r));
#else
            if (sub == 0) update(c, g);
#endif
        };

        for (int k = 0; k < K; ++k) {
#if ROWS
#if STAGED
            // margins and slopes: eight lanes per row, four rows per warp at a time
            const int now = (k & 1) * chunk;
            for (int i0 = warp * 4; warp < WORKERS && i0 < size; i0 += WORKERS * 4) {
                const int i = i0 + (lane >> 3), sub = lane & 7;
                const bool live = i < size;
                const int length = live ? lengths[now + i] : 0;
                for (int q = 0; q < Q; ++q) {
                    real s = 0;
#pragma unroll
                    for (int e = sub; e < STAGE; e += 8)
                        if (e < length) {
                            const real a = x[q * F1 + staged_idx[i * STAGE + e]];
                            s += UNIT ? a : a * staged_val[i * STAGE + e];
                        }
                    for (int e = STAGE + sub; e < length; e += 8) {
                        const real a = x[q * F1 + indices[starts[now + i] + e]];
                        s += UNIT ? a : a * values[starts[now + i] + e];
                    }
                    for (int o = 1; o < 8; o <<= 1) s += __shfl_xor_sync(FULL, s, o);
                    if (live && sub == 0) zs[q * chunk + i] = s;
                }
                if (live && sub == 0) {
                    const real share = (real)1 / (real)batch;
#if LOSS == 2
                    softmax_row(zs + i, chunk, Q, (int)row_labels[now + i], share);
#else
                    zs[i] = slope(zs[i], row_labels[now + i], share);
#endif
                }
            }
            if (k + 1 < K) draw(k + 1);
            __syncthreads();
            // gradient: warp v adds rows v, v + writers, ... one after another, as below
            if (warp < writers) {
                real* sum = own + (i64)warp * d;
                for (int i = warp; i < size; i += writers) {
                    const int length = lengths[now + i];
                    for (int q = 0; q < Q; ++q) {
                        const real s = zs[q * chunk + i];
                        for (int e = lane; e < length; e += 32) {
                            const bool near = e < STAGE;
                            const i64 far = near ? 0 : starts[now + i] + e;
                            const index_t c = near ? staged_idx[i * STAGE + e] : indices[far];
                            sum[q * F + c] += UNIT ? s : s * (near ? staged_val[i * STAGE + e] : values[far]);
                        }
                    }
                    __syncwarp();
                }
            }
            if (k + 1 < K) find(k + 1);
            __syncthreads();
            // the next rows are on their way while the gradients are added
            if (k + 1 < K) fetch_rows(k + 1, 0);
#else
            for (i64 base = q0; base < q1; base += chunk) {
                const int size = (int)(q1 - base < chunk ? q1 - base : chunk);
                const int sub = lane & 7;
                // margins and slopes: eight lanes per row, four rows per warp at a time
                for (int i0 = (tid >> 5) * 4; i0 < size; i0 += WARPS * 4) {
                    const int i = i0 + (lane >> 3);
                    const bool live = i < size;
#if DRAW
                    const i64 r = !live ? 0 : batch && !rest ? row_of(draws, (u32)(base + i)) : base + i;
                    const bool read = live && !(batch && rest && is_drawn(draws, (u32)r));
#else
                    const i64 r = live ? base + i : 0;
                    const bool read = live;
#endif
                    const i64 e0 = read ? indptr[r] : 0, e1 = read ? indptr[r + 1] : 0;
                    for (int q = 0; q < Q; ++q) {
                        real s = 0;
                        for (i64 e = e0 + sub; e < e1; e += 8) {
                            real a = look(x, q * F1 + indices[e]);
                            s += UNIT ? a : a * values[e];
                        }
                        for (int o = 1; o < 8; o <<= 1) s += __shfl_xor_sync(FULL, s, o);
                        if (live && sub == 0) zs[q * chunk + i] = s;
                    }
                    if (live && sub == 0) {
                        const real share = batch ? (real)1 / (real)batch : shares[r];
                        starts[i] = e0;
                        lengths[i] = (int)(e1 - e0);
#if LOSS == 2
                        softmax_row(zs + i, chunk, Q, (int)labels[r], share);
#else
                        zs[i] = slope(zs[i], labels[r], share);
#endif
                    }
                }
                __syncthreads();
                // gradient: warp v adds rows v, v + writers, ... one after another; the columns of a row are different,
                // so that no two lanes add to the same one
                if (warp < writers) {
                    real* sum = own + (i64)warp * d;
                    // the next row's first 32 entries are on their way while this one's are added
                    index_t next_i = 0;
                    real next_v = 1;
                    auto fetch = [&](int i) {
                        if (i < size && lane < lengths[i]) {
                            next_i = indices[starts[i] + lane];
                            if (!UNIT) next_v = values[starts[i] + lane];
                        }
                    };
                    fetch(warp);
                    for (int i = warp; i < size; i += writers) {
                        const index_t c = next_i;
                        const real v = next_v;
                        fetch(i + writers);
                        for (int q = 0; q < Q; ++q) {
                            const real s = zs[q * chunk + i];
                            if (lane < lengths[i]) sum[q * F + c] += UNIT ? s : s * v;
                            for (i64 e = starts[i] + lane + 32; e < starts[i] + lengths[i]; e += 32)
                                sum[q * F + indices[e]] += UNIT ? s : s * values[e];
                        }
                        __syncwarp();
                    }
                }
                __syncthreads();
            }
#if DRAW && !DRAWG
            if (batch && k + 1 < K) draw(k + 1);
#endif
#endif
            // the warps' gradients, added in the order of the warps, and made zero for the next step
            for (int c = tid; c < d; c += THREADS) {
                real g = 0;
                for (int v = 0; v < writers; ++v) {
                    g += own[(i64)v * d + c];
                    own[(i64)v * d + c] = 0;
                }
                emit(c, g, 0, 1);
            }
#if STAGED
            if (k + 1 < K) {
                stage_rows(k + 1, 0);
                for (int i0 = THREADS / 8; i0 < size; i0 += THREADS / 8) {
                    fetch_rows(k + 1, i0);
                    stage_rows(k + 1, i0);
                }
            }
#endif
#else
            // rows: margins, and slopes into z; the first lane of each output (`lead`) writes
            for (int t = ra; t < rz; ++t) {
                const int4 tile = row_tiles[t];
                const int log = tile.z & 7, o = lane >> log;
                const bool lead = (lane & ((1 << log) - 1)) == 0 && o < (tile.z >> 3);
                // a row's weight: zero unless it is in the minibatch
                auto weight = [&](int s) {
#if DRAW
                    return (PEEK(draws.taken + numbers[s]) == draws.mark) == rest ? (real)0 : w[s];
#else
                    return w[s];
#endif
                };
#if LOSS == 2
                const real share = lead ? weight(tile.w + o) : (real)0;
                for (int q = 0; q < Q; ++q) {
                    real s = gather<true>(row_idx, row_val, tile, lane, x + q * F1);
                    if (lead) z[q * zrow + tile.w + o] = s;
                }
                if (lead) softmax_row(z + tile.w + o, zrow, Q, (int)b[tile.w + o], share);
#else
                real s = gather<true>(row_idx, row_val, tile, lane, x);
                if (lead) {
                    const real share = weight(tile.w + o);
#if LOSS == 0
                    z[tile.w + o] = -share * falling(share > 0 ? s : -s);  // b_j = +-1 rides on the share's sign
#else
                    z[tile.w + o] = slope(s, b[tile.w + o], share);
#endif
                }
#endif
            }
#if DRAW
            if (k + 1 < K) draw(k + 1);
#endif
            __syncthreads();
#if DRAW && !DRAWG
            if (k + 1 < K) resolve();
#endif
            // columns: the block's part of the gradient; colmap says which column an output is
            for (int t = ca; t < cz; ++t) {
                const int4 tile = col_tiles[t];
                const int log = tile.z & 7, o = lane >> log;
                for (int q = 0; q < Q; ++q) {
                    real s = gather<false>(col_idx, col_val, tile, lane, z + q * zrow);
                    if (o < (tile.z >> 3)) emit(q * F + colmap[tile.w + o], s, lane & ((1 << log) - 1), 1 << log);
                }
            }
#endif
            // -- meet: the blocks' parts are added in the order of the blocks
#if GRID
            // each block takes the step in columns of its own, then all read the new x
            group_sync(counter, target += G);
#if DRAWG
            // all blocks have used this step's draws, or have made the next one's
#if ROWS
            if (batch && k + 1 < K) draw(k + 1);
#else
            if (k + 1 < K) resolve();
#endif
#endif
            for (int c = (int)((i64)d * rank / G) + tid; c < (int)((i64)d * (rank + 1) / G); c += THREADS) {
                real g = 0;
                for (int r = 0; r < G; ++r) g += __ldcg(part + (i64)r * d + c);
                update(c, g);
            }
            group_sync(counter, target += G);
#if !SG
            for (int i = tid; i < Q * F1; i += THREADS) x[i] = i % F1 < F ? __ldcg(shared_x + i) : (real)0;
            __syncthreads();
#endif
#elif CL > 1
            // every block takes the step in all columns, with the same numbers: one meeting per step is enough
            if (tid == 0) expect(bells + turn, CL * d * sizeof(real));
            await(bells + turn, (met >> 1) & 1);
            for (int c = tid; c < d; c += THREADS) {
                real g = 0;
#pragma unroll
                for (int r = 0; r < CL; ++r) g += inbox[(turn * CL + r) * d + c];
                update(c, g);
            }
            turn = ++met & 1;
            __syncthreads();
#else
            __syncthreads();
#endif
        }
        for (int c = rank * THREADS + tid; c < d; c += G * THREADS)
            out[(i64)j * d + c] = (double)look(x, LOSS == 2 ? c / F * F1 + c % F : c);
        // the next client overwrites what this one's blocks may still read
#if GRID
        group_sync(counter, target += G);
#elif TAIL
        __syncthreads();
#endif
    }
#if GRID || TAIL
    u32* bar = (u32*)plan[COUNTERS] + plan[GROUPS];
#endif
#if TAIL
    // -- when all local steps are done: what comes up is averaged or mixed, and server and clients go on from there.
    //    All of that is done column by column: up to MAX_CLIENTS_BY_COLUMNS, a block does it for columns of its own,
    //    and one meeting of all blocks is enough
    double* stage = (double*)memory;
/*ENDS*/
    // what server and clients make of it: four at a time are read before any is stored, to wait for memory once
    auto keep_all = [&](auto first, auto step, auto size, int k0, int columns) {
        for (auto base = first; base < size; base += 4 * step) {
            double v[4][KEEPS];
#pragma unroll
            for (int u = 0; u < 4; ++u) {
                const auto e = base + u * step;
                if (e < size) read((int)(e / columns), k0 + (int)(e % columns), v[u]);
            }
#pragma unroll
            for (int u = 0; u < 4; ++u) {
                const auto e = base + u * step;
                if (e < size) keep((int)(e / columns), k0 + (int)(e % columns), v[u]);
            }
        }
    };
    arrive(bar);
    if (count <= MAX_CLIENTS_BY_COLUMNS) {
        // the block's columns, a multiple of four; `most` of them are summed at a time: their products fit into the
        // stage, and there is a thread for each block of clients and column
        const int wide = 4 * (int)((d + 4 * gridDim.x - 1) / (4 * gridDim.x));
        const int k0 = blockIdx.x * wide, columns = min(k0 + wide, d) - k0;
        const int most = min(STAGED_NUMBERS / count, THREADS / ((count + SUM_BLOCK - 1) / SUM_BLOCK));
        if (columns > 0) {
            gather_all(bar, gridDim.x);
            for (int k = k0; k < k0 + columns; k += most)
                average(0, count, k, min(most, k0 + columns - k), -1);
            for (int e = tid; e < count * columns; e += THREADS) mix(e / columns, k0 + e % columns);
            __syncthreads();
            keep_all(tid, THREADS, count * columns, k0, columns);
        }
    } else {
        // sums of blocks of clients, strips of columns dealt to the blocks; meet; their totals; meet; the rest
        const int sums = (count + SUM_BLOCK - 1) / SUM_BLOCK;
        const int wide = STAGED_NUMBERS / SUM_BLOCK, strips = (d + wide - 1) / wide;
        const i64 me = (i64)blockIdx.x * THREADS + tid, all_threads = (i64)gridDim.x * THREADS, size = (i64)count * d;
        gather_all(bar, gridDim.x);
        for (i64 v = blockIdx.x; v < (i64)sums * strips; v += gridDim.x) {
            const int s = (int)(v / strips), k = (int)(v % strips) * wide, first = s * SUM_BLOCK;
            average(first, min(first + SUM_BLOCK, count), k, min(wide, d - k), s);
        }
        for (i64 t = me; t < size; t += all_threads) mix((int)(t / d), (int)(t % d));
        group_sync(bar, 2 * gridDim.x);
        for (i64 k = me; k < d; k += all_threads) total(sums, (int)k);
        group_sync(bar, 3 * gridDim.x);
        keep_all(me, all_threads, size, 0, d);
    }
#endif
#if GRID || TAIL
    // the last to leave makes the counters ready for the next launch
    __syncthreads();
    if (tid == 0) {
        __threadfence();
        if (atomicAdd(bar + 1, 1u) == gridDim.x - 1) {
            for (int g = 0; g < (int)plan[GROUPS]; ++g) ((u32*)plan[COUNTERS])[g] = 0;
            bar[0] = bar[1] = 0;
        }
    }
#endif
}
"""
)


@dataclass(frozen=True, eq=False)  # equal only to itself: compared by its long texts it costs every launch some us
class Round:
    """The C++ that fills the five gaps of ``descend``: what the local steps begin with, and what follows them.

    ``given`` declares arguments; ``x``, ``h`` and ``gamma`` are what client i (number ``row``) begins with in column k;
    ``ends`` defines ``average``, ``mix``, ``total``, ``read`` and ``keep``; without it a launch is local steps alone.
    """

    given: str
    x: str
    h: str
    gamma: str
    ends: str = ""

    @property
    def source(self) -> str:
        """The source of ``descend`` with its gaps filled."""
        gaps = {"GIVEN": self.given, "X": self.x, "H": self.h, "GAMMA": self.gamma, "ENDS": self.ends}
        text = SOURCE
        for name, code in gaps.items():
            text = text.replace(f"/*{name}*/", code)
        return text


STEPS = Round(
    given="const double* X, i64 x_stride, const double* H, i64 h_stride, const double* gammas, double gamma1",
    x="X[i * x_stride + k]",
    h="H ? H[i * h_stride + k] : 0.0",
    gamma="gammas ? gammas[i] : gamma1",
)
"""Local steps alone, from arrays."""

SERVER = r"""
// row y of the result is sum_i w_i U_i over the y-th block of clients, one after another, rounded as the CPU rounds it
extern "C" __global__ void block_sums(const double* w, const double* U, int n, int d, int block, double* out) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * block;
    if (c >= d) return;
    int last = first + block < n ? first + block : n;
    double total = 0;
#pragma unroll 8
    for (int i = first; i < last; ++i)
        total = __dadd_rn(total, w ? __dmul_rn(w[i], U[(long long)i * d + c]) : U[(long long)i * d + c]);
    out[(long long)blockIdx.y * d + c] = total;
}

// row i of the result is sum_j W_ij X_j, neighbour by neighbour
extern "C" __global__ void mix(const long long* indptr, const long long* indices, const double* weights,
                               const double* X, int n, int d, double* out) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y;
    if (c >= d) return;
    double total = 0;
    for (long long e = indptr[i]; e < indptr[i + 1]; ++e)
        total = __dadd_rn(total, __dmul_rn(weights[e], X[indices[e] * d + c]));
    out[(long long)i * d + c] = total;
}
"""


@cache
def module(round: Round, cooperative: bool, macros: tuple[tuple[str, str], ...]) -> Any:
    """The kernel ``descend`` for these macros; CuPy keeps the compiled form on disk for the next process."""
    import cupy  # type: ignore[import-not-found]

    more = {"TAIL": int(bool(round.ends)), "SUM_BLOCK": SUM_BLOCK, "MAX_CLIENTS_BY_COLUMNS": MAX_CLIENTS_BY_COLUMNS}
    more["STAGED_NUMBERS"] = STAGED_NUMBERS
    options = ("-std=c++17", *(f"-D{k}={v}" for k, v in (*macros, *more.items())))
    source = cupy.RawModule(code=round.source, options=options, backend="nvrtc", enable_cooperative_groups=cooperative)
    return steady(source.get_function("descend"))


@cache
def server(name: str) -> Any:
    """A kernel of the server's: ``block_sums`` or ``mix``."""
    import cupy

    return steady(cupy.RawModule(code=SERVER, backend="nvrtc").get_function(name))


def steady(kernel: Any) -> Any:
    """The kernel with all on-chip memory as shared memory, as the local steps have it: a change stalls the card."""
    kernel.preferred_shared_memory_carveout = 100
    return kernel
