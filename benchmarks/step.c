/* The same local steps as kernels.descend_tiles, on the same packed arrays, in plain C: the yardstick of the compiled
   Python. Built by benchmarks/run.py with -O3 -march=native where there is a compiler. All stored values are one. */
#include <stdint.h>
#include <string.h>

static const double C[12] = {1.0, 1.0, 0.5000000000000019, 0.1666666666666668, 0.04166666666648795,
    0.008333333333319589, 0.0013888888952352863, 0.00019841269890076403, 2.4801485441561313e-05,
    2.755724088722987e-06, 2.763265472252779e-07, 2.5110049204818658e-08};

static void margins(const double *restrict x, int64_t lo, int64_t hi, const uint64_t *restrict tiles,
                    const uint16_t *restrict index, double *restrict z)
{
    for (int64_t q = lo; q < hi; q++) {
        double s[8] = {0};
        for (uint64_t e = tiles[q]; e < tiles[q + 1]; e++)
            for (int k = 0; k < 8; k++)
                s[k] += x[index[8 * e + k]];
        memcpy(z + 8 * (q - lo), s, sizeof s);
    }
}

static void slopes(double *restrict z, const double *restrict b, const double *restrict scale, int64_t m)
{
    const double magic = 6755399441055744.0;
    for (int64_t i = 0; i < m; i++) {
        double u = b[i] * z[i], t = u * 1.4426950408889634 + magic, k = t - magic, s;
        double r = u - k * 6.93147180369123816490e-01 - k * 1.90821492927058770002e-10, r2 = r * r, r4 = r2 * r2;
        double q0 = (C[0] + C[1] * r) + (C[2] + C[3] * r) * r2, q1 = (C[4] + C[5] * r) + (C[6] + C[7] * r) * r2;
        double q2 = (C[8] + C[9] * r) + (C[10] + C[11] * r) * r2;
        int64_t bits;
        memcpy(&bits, &t, 8);
        bits = (int64_t)((uint64_t)bits << 52) + ((int64_t)1023 << 52);
        memcpy(&s, &bits, 8);
        z[i] = -b[i] * scale[i] / (1.0 + (q0 + (q1 + q2 * r4) * r4) * s);
    }
}

static void gather(const double *restrict z, int64_t d, const uint64_t *restrict tiles, const uint16_t *restrict rows,
                   double *restrict g)
{
    for (int64_t c = 0; c < d; c++) {
        double s[4] = {0};
        for (uint64_t e = tiles[c]; e < tiles[c + 1]; e++)
            for (int k = 0; k < 4; k++)
                s[k] += z[rows[4 * e + k]];
        g[c] = (s[0] + s[1]) + (s[2] + s[3]);
    }
}

void descend(int64_t n, int64_t d, double *X, const double *H, double gamma, int64_t K, const int64_t *groups,
             const uint64_t *tiles, const uint16_t *index, const uint64_t *columns, const uint16_t *rows, const double *b,
             const double *scale, const double *reg, double *x, double *z, double *g)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t lo = groups[i], hi = groups[i + 1], m = 8 * (hi - lo);
        memcpy(x, X + i * d, d * sizeof *x);
        x[d] = 0.0;
        z[m] = 0.0;
        for (int64_t k = 0; k < K; k++) {
            margins(x, lo, hi, tiles, index, z);
            slopes(z, b + 8 * lo, scale + 8 * lo, m);
            gather(z, d, columns + i * d, rows, g);
            for (int64_t c = 0; c < d; c++)
                x[c] -= gamma * (g[c] + reg[c] * x[c] - H[i * d + c]);
        }
        memcpy(X + i * d, x, d * sizeof *x);
    }
}
