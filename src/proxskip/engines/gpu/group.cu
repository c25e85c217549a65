// A group: the thread blocks that work on one client at a time.
//
// Every block owns a slice of the client's rows. In a step it computes its part of the gradient and hands it on column
// by column (`add`); when all blocks have done so (`meet`), x has taken the step  x <- x - gamma (g + reg x - h).  There
// are three kinds of groups:
//   one block, which takes the step in a column as soon as the column is handed on;
//   a cluster (CLUSTER > 1): every block pushes its part into the inboxes of all blocks, which lie in their shared
//     memory and count the bytes that arrive; then every block takes the same step in all columns;
//   a GRID, for few large clients: parts go to global memory, every block takes the step in columns of its own, and all
//     of them read the new x. All blocks of the launch must be on the GPU at once.
// Parts are added in the order of the blocks and never atomically, so that every run gives the same bytes.

// ---- barriers ----------------------------------------------------------------------------------------------------
// all blocks of a cluster; what one wrote before, the others read after
INLINE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// the address of p's counterpart in the shared memory of the cluster's block `rank`
INLINE u32 peer(const void* p, u32 rank) {
    u32 a = (u32)__cvta_generic_to_shared(p), out;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(rank));
    return out;
}
// a store into another block's shared memory that counts its bytes off that block's barrier
INLINE void push(u32 address, double v, u32 bell) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f64 [%0], %1, [%2];"
                 ::"r"(address), "d"(v), "r"(bell) : "memory");
}
INLINE void push(u32 address, float v, u32 bell) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];"
                 ::"r"(address), "f"(v), "r"(bell) : "memory");
}
// this block's barrier opens when this number of bytes has been pushed to it
INLINE void expect(u64* bell, u32 bytes) {
    asm volatile("{\n.reg .b64 t;\nmbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], %1;\n}"
                 ::"r"((u32)__cvta_generic_to_shared(bell)), "r"(bytes) : "memory");
}
// until the barrier's phase of this parity is over
INLINE void await(u64* bell, u32 parity) {
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra again;\n}"
                 ::"r"((u32)__cvta_generic_to_shared(bell)), "r"(parity) : "memory");
}
// Blocks that meet in global memory add one to a counter and wait until it has reached the target. It only grows during
// a launch (each meeting has a target of its own), so that it is never reset while a block reads it.
__device__ void grid_sync(u32* counter, u32 target) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();  // what the block wrote is visible before it is counted
        atomicAdd(counter, 1u);
        u32 seen;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
        } while ((int)(seen - target) < 0);  // right even where the counter wraps around
        __threadfence();
    }
    __syncthreads();
}

struct Group {
    const Plan* plan;
    int F, Q, d, size, rank, number, groups;  // `size` blocks, of which this is `rank`; group `number` of `groups`
    real gamma;
    bool want_gradient;  // the gradient in place of the step
    real *x, *h, *reg;   // x has a zero after each class's F columns, which blank entries of a row read
    // a cluster: two inboxes, used in turn, so that a block that is a step ahead fills the one that nobody reads
    real* inbox;
    u64* bells;
    u32 meetings;
    // a grid
    real *parts, *x_all;
    u32 *counter, target;

    INLINE void open(const Plan* p) {
        plan = p;
        F = (int)p->F, Q = LOSS == 2 ? (int)p->Q : 1, d = F * Q;
        size = GRID ? (int)p->group_size : CLUSTER;
        groups = GRID ? (int)p->groups : gridDim.x / CLUSTER;
        number = blockIdx.x / size, rank = blockIdx.x % size;
        meetings = target = 0;
        if (GRID) {
            counter = p->counters + number;
            parts = p->parts + (i64)number * size * d;
            x_all = p->x_global + (i64)number * Q * (F + 1);
        }
        if (CLUSTER > 1) {
            __shared__ __align__(8) u64 two_bells[2];
            bells = two_bells;
            if (threadIdx.x == 0) {
                for (int i = 0; i < 2; ++i)
                    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;"
                                 ::"r"((u32)__cvta_generic_to_shared(bells + i)));
                asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            }
        }
    }

    // where column c is in x
    INLINE int place(int c) const { return LOSS == 2 ? c / F * (F + 1) + c % F : c; }
    // x in global memory is written by other blocks, so it is read from the second-level cache, which all share
    INLINE real read(const real* v, i64 i) const { return X_GLOBAL ? __ldcg(v + i) : v[i]; }

    // A client's x, h and reg. They come first in shared memory: at the same place in every block of a cluster.
    INLINE void begin(Room& room, int client, const double* from_x, const double* from_h, double step, double pull) {
        gamma = (real)step;
        if (X_GLOBAL) {
            x = x_all, h = plan->h_global + (i64)number * 2 * d, reg = h + d;
        } else {
            x = room.take<real>((i64)Q * (F + 1)), h = room.take<real>(d), reg = room.take<real>(d);
        }
        const double* l2 = plan->reg + client * plan->reg_stride;
        const int me = (X_GLOBAL ? rank * THREADS : 0) + threadIdx.x, all = X_GLOBAL ? size * THREADS : THREADS;
        for (int c = me; c < d; c += all) {
            x[place(c)] = (real)from_x[c];
            h[c] = from_h ? (real)from_h[c] : (real)0;
            reg[c] = (real)(l2[c] + pull);
        }
        for (int q = me; q < Q; q += all) x[q * (F + 1) + F] = 0;
        if (CLUSTER > 1) inbox = room.take<real>((i64)2 * CLUSTER * d);
    }

    // until all blocks are here
    INLINE void sync() {
        if (GRID)
            grid_sync(counter, target += size);
        else if (CLUSTER > 1)
            cluster_sync();
        else
            __syncthreads();
    }

    INLINE void update(int c, real g) {
        const int i = place(c);
        real now = read(x, i);
        g += read(reg, c) * now;
        now = want_gradient ? g : now - gamma * (g - read(h, c));
        x[i] = now;
        if (GRID && !X_GLOBAL) __stcg(x_all + i, now);
    }

    // Hand on the block's part g of column c, which `lanes` lanes hold, this one being number `lane`. A group of one
    // block takes the step at once: nobody reads x any more in this step, and a column has one writer.
    INLINE void add(int c, real g, int lane, int lanes) {
        if (GRID) {
            if (lane == 0) __stcg(parts + (i64)rank * d + c, g);
        } else if (CLUSTER > 1) {
            const int turn = meetings & 1;
            const real* slot = inbox + (turn * CLUSTER + rank) * d + c;
            for (int r = lane; r < CLUSTER; r += lanes) push(peer(slot, r), g, peer(bells + turn, r));
        } else {
            if (lane == 0) update(c, g);
        }
    }

    // when all blocks have handed on all columns, x takes the step
    INLINE void meet() {
        if (GRID) {
            sync();
            const int last = (int)((i64)d * (rank + 1) / size);
            for (int c = (int)((i64)d * rank / size) + threadIdx.x; c < last; c += THREADS) {
                real g = 0;
                for (int r = 0; r < size; ++r) g += __ldcg(parts + (i64)r * d + c);
                update(c, g);
            }
            sync();
            if (!X_GLOBAL) {
                for (int i = threadIdx.x; i < Q * (F + 1); i += THREADS)
                    x[i] = i % (F + 1) < F ? __ldcg(x_all + i) : (real)0;
                __syncthreads();
            }
        } else if (CLUSTER > 1) {
            const int turn = meetings & 1;
            if (threadIdx.x == 0) expect(bells + turn, CLUSTER * d * sizeof(real));
            await(bells + turn, (meetings >> 1) & 1);
            for (int c = threadIdx.x; c < d; c += THREADS) {
                real g = 0;
#pragma unroll
                for (int r = 0; r < CLUSTER; ++r) g += inbox[(turn * CLUSTER + r) * d + c];
                update(c, g);
            }
            ++meetings;
            __syncthreads();
        } else {
            __syncthreads();
        }
    }

    // x of the client, written by all blocks
    INLINE void store(double* out) {
        for (int c = rank * THREADS + threadIdx.x; c < d; c += size * THREADS) out[c] = (double)read(x, place(c));
        if (GRID) sync();  // the next client overwrites what the others may still read
    }

    // The last block to leave makes the counters ready for the next launch; `groups` counters, then those who left.
    INLINE void close() {
        if (!GRID) return;
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            if (atomicAdd(plan->counters + groups, 1u) == gridDim.x - 1)
                for (int g = 0; g <= groups; ++g) plan->counters[g] = 0;
        }
    }
};
