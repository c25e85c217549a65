// Local steps of many clients in one launch, on the `Shard` of tiles.cu or rows.cu.
//
// A group of blocks takes one client after another. For each it loads x, h and the client's data, takes the client's
// steps, and writes x. The steps may use fused multiply-adds.
#if CLUSTER > 1
#ifndef __cluster_dims__
#define __cluster_dims__(...) __attribute__((cluster_dims(__VA_ARGS__)))
#endif
#define SHAPE __cluster_dims__(CLUSTER, 1, 1)
#else
#define SHAPE
#endif
// X, H        a row of d numbers per client, or one for all (stride 0); H may be null, which is zero
// gammas, Ks  one per client; where null, gamma1 and K1 for all
// members     the number of each client; where null, they are all clients in order
// order       who begins first: those with many steps should
// done, most  this launch takes the steps from `done` on, at most `most` of them
// drawn       what draw.cu has drawn for these steps
// pull        added to the clients' l2 terms
extern "C" __global__ void __launch_bounds__(THREADS) SHAPE
descend(const Plan* plan, const double* X, i64 x_stride, const double* H, i64 h_stride, const double* gammas,
        double gamma1, const int* Ks, int K1, int done, int most, const int* members, const int* order, int count,
        int want_gradient, double pull, const void* drawn, double* out) {
    extern __shared__ __align__(16) char memory[];
    Group group;
    group.open(plan);
    group.want_gradient = want_gradient;
    for (int at = group.number; at < count; at += group.groups) {
        const int j = order ? order[at] : at, client = members ? members[j] : j;
        const int K = min(max((Ks ? Ks[j] : K1) - done, 0), most);
        Room room = {memory};
        Shard shard;
        group.begin(room, client, X + j * x_stride, H ? H + j * h_stride : H, gammas ? gammas[j] : gamma1, pull);
        shard.load(room, group, client, j, count, drawn);
        group.sync();
        for (int k = 0; k < K; ++k) {
            shard.gradient(k, K, group);
            group.meet();
        }
        group.store(out + (i64)j * group.d);
    }
    group.close();
}
