// What the server makes of the clients' vectors, one thread per number, with the bytes of the CPU: __dadd_rn and
// __dmul_rn are rounded to nearest and never fused.

// row y of the result is sum_i w_i U_i over the y-th block of clients, one after another; without w, the plain sum
extern "C" __global__ void block_sums(const double* w, const double* U, int n, int d, int block, double* out) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * block;
    if (c >= d) return;
    const int last = first + block < n ? first + block : n;
    double total = 0;
#pragma unroll 8
    for (int i = first; i < last; ++i)
        total = __dadd_rn(total, w ? __dmul_rn(w[i], U[(long long)i * d + c]) : U[(long long)i * d + c]);
    out[(long long)blockIdx.y * d + c] = total;
}

// row i of the result is sum_j W_ij X_j, neighbour by neighbour
extern "C" __global__ void mix(const long long* indptr, const long long* indices, const double* weights,
                               const double* X, int n, int d, double* out) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y;
    if (c >= d) return;
    double total = 0;
    for (long long e = indptr[i]; e < indptr[i + 1]; ++e)
        total = __dadd_rn(total, __dmul_rn(weights[e], X[indices[e] * d + c]));
    out[(long long)i * d + c] = total;
}
