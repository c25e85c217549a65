// A client's data row by row, for small minibatches, which read other rows in every step, and for clients of few rows.
//
// The rows of a step are dealt to the blocks of the group, and a block takes its rows in chunks. Margins and slopes:
// eight lanes per row. Then every warp adds rows to a gradient of its own, one row after another, and at the end the
// warps' gradients are added in the order of the warps.
struct Shard {
    const i64* indptr;
    const index_t* indices;
    const real *values, *labels, *shares;
    const DrawnRow* drawn;  // the rows of the first step's minibatch
    i64 drawn_stride, first, last;  // this block's rows are those from `first` to `last` - 1 of a step
    i64 batch;
    int chunk, writers;  // rows at a time, and warps that have a gradient
    i64* starts;
    int* lengths;
    real *slopes, *sums;

    INLINE void load(Room& room, const Group& group, int client, int j, int count, const void* rows) {
        const Plan& plan = *group.plan;
        const i64 row0 = plan.row0[client];
        batch = MINIBATCHES ? plan.batch : 0, chunk = (int)plan.chunk, writers = (int)plan.writers;
        indptr = plan.indptr + row0, indices = plan.indices, values = plan.values;
        labels = plan.labels + row0, shares = plan.shares + row0;
        drawn = (const DrawnRow*)rows + j * batch, drawn_stride = count * batch;
        const i64 rows_of_step = MINIBATCHES ? batch : plan.row0[client + 1] - row0;
        first = rows_of_step * group.rank / group.size, last = rows_of_step * (group.rank + 1) / group.size;
        starts = room.take<i64>(chunk);
        lengths = room.take<int>(chunk);
        slopes = room.take<real>((i64)group.Q * chunk);
        const i64 size = (i64)writers * group.d;
        sums = X_GLOBAL ? plan.sums_global + blockIdx.x * size : room.take<real>(size);
        for (i64 c = threadIdx.x; c < size; c += THREADS) sums[c] = 0;
    }

    // row i of step k
    INLINE DrawnRow row_of(int k, i64 i) const {
        if (MINIBATCHES) return drawn[k * drawn_stride + i];
        return {indptr[i], (int)(indptr[i + 1] - indptr[i]), (int)i};
    }

    INLINE void gradient(int k, int K, Group& group) {
        for (i64 base = first; base < last; base += chunk) {
            const int size = (int)(last - base < chunk ? last - base : chunk);
            find_slopes(k, K, base, size, group);
            __syncthreads();
            add_rows(size, group);
            __syncthreads();
        }
        for (int c = threadIdx.x; c < group.d; c += THREADS) {
            real g = 0;
            for (int v = 0; v < writers; ++v) {
                g += sums[(i64)v * group.d + c];
                sums[(i64)v * group.d + c] = 0;
            }
            group.add(c, g, 0, 1);
        }
    }

    // eight lanes per row, four rows per warp at a time
    INLINE void find_slopes(int k, int K, i64 base, int size, const Group& group) {
        const int lane = threadIdx.x & 31, part = lane & 7, F = group.F, Q = group.Q;
        for (int i0 = (threadIdx.x >> 5) * 4; i0 < size; i0 += WARPS * 4) {
            const int i = i0 + (lane >> 3);
            const bool live = i < size, more = MINIBATCHES && live && k + 1 < K;
            const DrawnRow row = live ? row_of(k, base + i) : DrawnRow{0, 0, 0};
            const DrawnRow next = more ? row_of(k + 1, base + i) : DrawnRow{0, 0, 0};
            for (int q = 0; q < Q; ++q) {
                real s = 0;
                for (int e = part; e < row.length; e += 8) {
                    const real a = group.read(group.x, q * (F + 1) + indices[row.start + e]);
                    s += UNIT ? a : a * values[row.start + e];
                }
                for (int o = 1; o < 8; o <<= 1) s += __shfl_xor_sync(ALL_LANES, s, o);
                if (live && part == 0) slopes[q * chunk + i] = s;
            }
            if (live && part == 0) {
                const real share = MINIBATCHES ? (real)1 / (real)batch : shares[row.row], label = labels[row.row];
                starts[i] = row.start, lengths[i] = row.length;
                if (LOSS == 2)
                    softmax_row(slopes + i, chunk, Q, (int)label, share);
                else
                    slopes[i] = slope(slopes[i], label, share);
            }
            // the rows of the next step are on their way while this one is finished
            if (more && part == 0) {
                asm volatile("prefetch.global.L1 [%0];" ::"l"(indices + next.start));
                asm volatile("prefetch.global.L1 [%0];" ::"l"(labels + next.row));
                if (!UNIT) asm volatile("prefetch.global.L1 [%0];" ::"l"(values + next.start));
            }
        }
    }

    // Warp v adds rows v, v + writers, ... of the chunk to its gradient. The columns of a row are different, so that no
    // two lanes add to the same one. The next row's first entries are on their way while this one's are added.
    INLINE void add_rows(int size, const Group& group) {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        if (warp >= writers) return;
        real* sum = sums + (i64)warp * group.d;
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
            for (int q = 0; q < group.Q; ++q) {
                const real s = slopes[q * chunk + i];
                if (lane < lengths[i]) sum[q * group.F + c] += UNIT ? s : s * v;
                for (int e = lane + 32; e < lengths[i]; e += 32)
                    sum[q * group.F + indices[starts[i] + e]] += UNIT ? s : s * values[starts[i] + e];
            }
            __syncwarp();
        }
    }
};
