// What all kernels of local steps share: constants, the plan, losses, and room in shared memory.
//
// The kernels are compiled at run time for the problem at hand, with these constants:
//   REAL          double or float
//   INDEX         unsigned short or unsigned int: a column, or a row of a slice
//   UNIT          1 if all stored values are one, and not stored
//   LOSS          0 logistic, 1 squared, 2 softmax
//   MINIBATCHES   1 if a step takes the rows that draw.cu has drawn for it
//   THREADS       of a block
//   CLUSTER       blocks of a cluster; 1 where a group is one block, or a GRID
//   GRID          1 if the blocks of a group meet in global memory
//   PACK          entries of a lane of a tile that are loaded at once
//   X_GLOBAL, DATA_GLOBAL, Z_GLOBAL   1 if x, h and reg, the data, or z do not fit into shared memory
typedef REAL real;
typedef INDEX index_t;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
#define INLINE __device__ __forceinline__
const int WARPS = THREADS / 32;
const u32 ALL_LANES = 0xffffffffu;

// Sizes and addresses that do not change between launches; launch.py writes them, eight bytes each, in this order.
struct Plan {
    i64 F, Q;  // features, and classes (1 unless the loss is softmax)
    const double* reg;
    i64 reg_stride;
    i64 batch;
    const i64* row0;  // the first row of each client
    // groups whose blocks meet in global memory: group.cu
    i64 group_size, groups;
    real *parts, *x_global, *h_global;
    u32* counters;
    // tiles.cu
    const i64* meta;
    const int4 *row_tiles, *col_tiles;
    const index_t *row_idx, *col_idx;
    const real *row_val, *col_val, *row_labels, *row_weights;
    const index_t* colmap;
    const int *row_warps, *col_warps;
    const u32* numbers;
    real* z_global;
    i64 z_stride;
    i64 mask_words;
    // rows.cu
    const i64* indptr;
    const index_t* indices;
    const real *values, *labels, *shares;
    i64 chunk, writers;
    real* sums_global;
};

// a row of a minibatch, as draw.cu writes it: its entries begin at `start`
struct __align__(16) DrawnRow {
    i64 start;
    int length, row;
};

// ---- losses ------------------------------------------------------------------------------------------------------
// 1 / (1 + exp(t)) to an ulp or two, in few dependent steps: Taylor to degree 13 by Estrin, Newton for the reciprocal
INLINE double falling(double t) {
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
INLINE float falling(float t) { return 1.0f / (1.0f + expf(t)); }

// the loss's derivative in its margin z, times the row's weight
INLINE real slope(real z, real label, real weight) {
    return LOSS == 0 ? -label * weight * falling(label * z) : weight * (z - label);
}

// scores of one row in s[0], s[stride], ...: replaced by weight (softmax - onehot(label))
__device__ void softmax_row(real* s, i64 stride, int Q, int label, real weight) {
    real top = s[0], total = 0;
    for (int q = 1; q < Q; ++q) top = s[q * stride] > top ? s[q * stride] : top;
    for (int q = 0; q < Q; ++q) {
        real e = exp(s[q * stride] - top);
        s[q * stride] = e;
        total += e;
    }
    for (int q = 0; q < Q; ++q) s[q * stride] = weight * (s[q * stride] / total - (q == label ? (real)1 : (real)0));
}

// ---- shared memory -----------------------------------------------------------------------------------------------
// A block's shared memory, handed out from its start in pieces that begin at multiples of 16 bytes.
struct Room {
    char* top;
    template <class T>
    INLINE T* take(i64 items) {
        char* piece = top;
        top += (items * sizeof(T) + 15) / 16 * 16;
        return (T*)piece;
    }
    // a copy of global memory, under way until `loaded`: 16 bytes per thread at a time, past the registers
    template <class T>
    INLINE T* load(const T* from, i64 items) {
        T* piece = take<T>(items);
        const u32 to = (u32)__cvta_generic_to_shared(piece);
        for (i64 i = (i64)threadIdx.x * 16; i < (i64)(items * sizeof(T)); i += THREADS * 16)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + (u32)i), "l"((const char*)from + i));
        return piece;
    }
    INLINE void loaded() { asm volatile("cp.async.wait_all;" ::: "memory"); }
};
