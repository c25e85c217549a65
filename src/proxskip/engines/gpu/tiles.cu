// A client's data as tiles, for full gradients and minibatches of many of a client's rows.
//
// A block owns a slice of the client's rows. A step has two gathers, and nothing is scattered:
//   rows      z_j = slope(a_j' x)        for the block's rows: gathered from x
//   columns   g_c = sum_j a_jc z_j       over the block's rows: gathered from z
// Both read tiles (tiles.py): 32 lanes, each a run of packed indices, 1 to 32 lanes to an output, whose sums are joined
// by a butterfly. A slice's tiles are copied into shared memory once and read by all steps of the launch. Rows that are
// not in the step's minibatch have weight zero.

// entries of a lane, loaded at once
struct __align__(PACK * sizeof(index_t)) Pack { index_t i[PACK]; };

// A tile: x = its first pack (in rows of 32), y = packs per lane, z = outputs << 3 | log2(lanes per output), w = its
// first output. Pack e of all 32 lanes is contiguous, so that a warp reads it in one go. Two sums take turns, since an
// addition waits for the one before. After the butterfly all lanes of an output hold the same sum.
template <bool FROM_X>
INLINE real gather(const index_t* idx, const real* val, int4 tile, int lane, const real* source) {
    const Pack* packs = (const Pack*)idx + (i64)tile.x * 32 + lane;
    const real* values = UNIT ? (const real*)0 : val + ((i64)tile.x * 32 + lane) * PACK;
    real s[2] = {0, 0};
#pragma unroll 2
    for (int e = 0; e < tile.y; ++e) {
        const Pack pack = packs[e * 32];
        real f[PACK];
        if (!UNIT)
            for (int k = 0; k < PACK; ++k) f[k] = values[e * 32 * PACK + k];
#pragma unroll
        for (int k = 0; k < PACK; ++k) {
            const real a = FROM_X && X_GLOBAL ? __ldcg(source + pack.i[k]) : source[pack.i[k]];
            s[k & 1] += UNIT ? a : a * f[k];
        }
    }
    real sum = s[0] + s[1];
    for (int o = 1; o < (1 << (tile.z & 7)); o <<= 1) sum += __shfl_xor_sync(ALL_LANES, sum, o);
    return sum;
}

struct Shard {
    const int4 *row_tiles, *col_tiles;
    const index_t *row_idx, *col_idx, *colmap;  // colmap: which column an output of the column tiles is
    const real *row_val, *col_val, *labels, *weights;
    const u32* numbers;  // each row's number among its client's
    real* z;
    i64 z_stride;  // a zero after each class's slopes, which blank entries of a column read
    const u32* mask;  // of the first step: a bit for each of the client's rows
    i64 mask_stride;
    int row_tile, row_end, col_tile, col_end;  // this warp's

    INLINE void load(Room& room, const Group& group, int client, int j, int count, const void* drawn) {
        const Plan& plan = *group.plan;
        const int warp = threadIdx.x >> 5, columns = (group.F + 7) / 8 * 8;
        const i64 slice = (i64)client * group.size + group.rank;
        const i64* meta = plan.meta + slice * 10;
        const i64 row_packs = meta[3] * 32 * PACK, col_packs = meta[7] * 32 * PACK, first = meta[8], rows = meta[9];
        const i64 rows4 = (rows + 3) / 4 * 4;
        row_tiles = plan.row_tiles + meta[0];
        col_tiles = plan.col_tiles + meta[4];
        row_idx = plan.row_idx + meta[2] * 32 * PACK;
        col_idx = plan.col_idx + meta[6] * 32 * PACK;
        row_val = plan.row_val + (UNIT ? 0 : meta[2] * 32 * PACK);
        col_val = plan.col_val + (UNIT ? 0 : meta[6] * 32 * PACK);
        labels = plan.row_labels + first;
        weights = plan.row_weights + first;
        colmap = plan.colmap + slice * columns;
        numbers = plan.numbers + (MINIBATCHES ? first : 0);
        const int* row_warps = plan.row_warps + slice * (WARPS + 1);
        const int* col_warps = plan.col_warps + slice * (WARPS + 1);
        row_tile = row_warps[warp], row_end = row_warps[warp + 1];
        col_tile = col_warps[warp], col_end = col_warps[warp + 1];
        mask = (const u32*)drawn + j * plan.mask_words;
        mask_stride = count * plan.mask_words;
        if (!DATA_GLOBAL) {
            row_tiles = room.load(row_tiles, meta[1]);
            col_tiles = room.load(col_tiles, meta[5]);
            row_idx = room.load(row_idx, row_packs);
            col_idx = room.load(col_idx, col_packs);
            if (!UNIT) row_val = room.load(row_val, row_packs);
            if (!UNIT) col_val = room.load(col_val, col_packs);
            if (LOSS != 0) labels = room.load(labels, rows4);
            weights = room.load(weights, rows4);
            colmap = room.load(colmap, columns);
            if (MINIBATCHES) numbers = room.load(numbers, rows4);
        }
        z_stride = rows + 1;
        z = Z_GLOBAL ? plan.z_global + blockIdx.x * plan.z_stride : room.take<real>(group.Q * z_stride);
        for (int q = threadIdx.x; q < group.Q; q += THREADS) z[q * z_stride + rows] = 0;
        room.loaded();
    }

    // the weight of row s in this step's gradient
    INLINE real weight(int s, const u32* drawn) const {
        if (MINIBATCHES && !(drawn[numbers[s] >> 5] >> (numbers[s] & 31) & 1)) return 0;
        return weights[s];
    }

    INLINE void gradient(int k, int K, Group& group) {
        const int lane = threadIdx.x & 31, F = group.F, Q = group.Q;
        const u32* drawn = mask + k * mask_stride;
        // rows: margins, and slopes into z; the first lane of each output writes
        for (int t = row_tile; t < row_end; ++t) {
            const int4 tile = row_tiles[t];
            const int log = tile.z & 7, o = lane >> log, row = tile.w + o;
            const bool first = (lane & ((1 << log) - 1)) == 0 && o < (tile.z >> 3);
            if (LOSS == 2) {
                for (int q = 0; q < Q; ++q) {
                    const real s = gather<true>(row_idx, row_val, tile, lane, group.x + q * (F + 1));
                    if (first) z[q * z_stride + row] = s;
                }
                if (first) softmax_row(z + row, z_stride, Q, (int)labels[row], weight(row, drawn));
            } else {
                const real s = gather<true>(row_idx, row_val, tile, lane, group.x);
                if (first) {
                    const real w = weight(row, drawn);
                    // logistic: the label, +1 or -1, is the sign of the weight
                    z[row] = LOSS == 0 ? -w * falling(w > 0 ? s : -s) : slope(s, labels[row], w);
                }
            }
        }
        __syncthreads();
        // columns: the block's part of the gradient
        for (int t = col_tile; t < col_end; ++t) {
            const int4 tile = col_tiles[t];
            const int log = tile.z & 7, o = lane >> log;
            for (int q = 0; q < Q; ++q) {
                const real s = gather<false>(col_idx, col_val, tile, lane, z + q * z_stride);
                if (o < (tile.z >> 3)) group.add(q * F + colmap[tile.w + o], s, lane & ((1 << log) - 1), 1 << log);
            }
        }
    }
};
