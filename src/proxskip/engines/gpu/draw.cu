// The minibatches of many steps, with the numbers of randomness.minibatch.
//
// Block (j, k) draws that of client j in step `step` + k: n of the client's m rows by Floyd's algorithm, where n is the
// batch or, if that is more than half of the rows, the rest, which are then left out. Draw i has a number from 0 to
// m - n + i; it takes that row, unless the row is taken, and then row m - n + i. All threads compute numbers, and one
// thread resolves them in order with a bit for each row.
//
// The answer is a list of rows (`rows`, for rows.cu) or a mask with a bit for each row (for tiles.cu).
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
#ifndef DRAWS_AT_ONCE
#define DRAWS_AT_ONCE 1024
#endif

// Philox4x32-10: four random words from a counter of four words and a key
__device__ void philox(u32 c0, u32 c1, u32 c2, u32 c3, u64 key, u32* words) {
    u32 k0 = (u32)key, k1 = (u32)(key >> 32);
    for (int i = 0; i < 10; ++i) {
        const u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
        c0 = (u32)(p1 >> 32) ^ c1 ^ k0, c2 = (u32)(p0 >> 32) ^ c3 ^ k1;
        c1 = (u32)p1, c3 = (u32)p0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

// The number of draw i, below `side`. Word r of block q belongs to draw q + r * blocks; each of the four draws of a
// block computes it anew, which is quicker than to hand it on.
__device__ u32 number(u32 i, u32 side, u32 blocks, u32 step, u32 round, u32 client, u64 seed) {
    u32 words[4];
    const u32 r = i / blocks;
    philox(i - r * blocks, step, round, client, seed, words);
    u64 product = (u64)(r < 2 ? r ? words[1] : words[0] : r == 2 ? words[2] : words[3]) * side;
    if ((u32)product < side) {  // rare: a word that would favor some numbers is drawn again
        const u32 least = (0u - side) % side;
        for (u32 attempt = 0; (u32)product < least; ++attempt) {
            if (attempt % 4 == 0)
                philox(0x40000000u | i, step, round, client, seed + ((u64)(attempt / 4) << 32), words);
            product = (u64)words[attempt % 4] * side;
        }
    }
    return (u32)(product >> 32);
}

struct __align__(16) DrawnRow {
    i64 start;
    int length, row;
};

// row0     the first row of each client among all
// indptr   where the entries of each row begin
// rows     the answer as lists, or null
// masks    the answer as masks of `words` words each; or room for them where they do not fit into shared memory; or null
extern "C" __global__ void draw(const i64* row0, const i64* indptr, const int* members, i64 batch, u64 seed, u32 round,
                                u32 step, DrawnRow* rows, u32* masks, int words, int use_shared) {
    extern __shared__ u32 memory[];
    __shared__ u32 numbers[DRAWS_AT_ONCE];
    const int j = blockIdx.x, me = threadIdx.x, threads = blockDim.x, client = members ? members[j] : j;
    const i64 first = row0[client], place = (i64)blockIdx.y * gridDim.x + j;
    const u32 m = (u32)(row0[client + 1] - first);
    const bool rest = 2 * batch > (i64)m;
    const u32 n = rest ? m - (u32)batch : (u32)batch, blocks = (n + 3) / 4;
    u32* mask = use_shared ? memory : masks + place * words;
    auto put = [&](i64 i, u32 row) {
        const i64 start = indptr[first + row];
        rows[place * batch + i] = {start, (int)(indptr[first + row + 1] - start), (int)row};
    };
    for (int w = me; w < words; w += threads) mask[w] = 0;
    __syncthreads();
    for (u32 base = 0; base < n; base += DRAWS_AT_ONCE) {
        const u32 end = base + DRAWS_AT_ONCE < n ? base + DRAWS_AT_ONCE : n;
        for (u32 i = base + me; i < end; i += threads)
            numbers[i - base] = number(i, m - n + 1 + i, blocks, step + blockIdx.y, round, client, seed);
        __syncthreads();
        if (me == 0)
            for (u32 i = base; i < end; ++i) {
                u32 row = numbers[i - base];
                if (mask[row >> 5] >> (row & 31) & 1) row = m - n + i;
                mask[row >> 5] |= 1u << (row & 31);
                numbers[i - base] = row;
            }
        __syncthreads();
        if (rows && !rest)
            for (u32 i = base + me; i < end; i += threads) put(i, numbers[i - base]);
        __syncthreads();
    }
    if (rows && rest && me == 0) {
        i64 i = 0;
        for (u32 row = 0; row < m; ++row)
            if (!(mask[row >> 5] >> (row & 31) & 1)) put(i++, row);
    }
    if (!rows)
        for (int w = me; w < words; w += threads) masks[place * words + w] = rest ? ~mask[w] : mask[w];
}
