// Small matrix products whose operands stay in the cache, and operations on rows.
//
// Numbers of columns are multiples of the vector's length: callers pad rows to multiples of PAD numbers.
#pragma once

#include <cassert>

#include "simd.h"

namespace hrf {

constexpr int64_t PAD = 16;  // the longest vector, in floats

inline int64_t padded(int64_t n) { return n + (-n & (PAD - 1)); }

// One tile of R rows and V vectors: out (R, ·) = or += Σₚ left(r, p) right(p, ·).
//
// Left is row `index[r]` (or r) of a, or with `Transposed` its column r; right is row p of b, or row `index[p]` where
// left is transposed.
template <bool Add, bool Transposed, int R, int V, class T>
inline void tile(int64_t k, const T* a, int64_t lda, const int32_t* index, const T* b, int64_t ldb, T* out,
                 int64_t ldo) {
    constexpr int N = lanes<T>;
    vec<T> total[R][V];
    const T* rows[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        rows[r] = Transposed ? a + r : a + (index ? index[r] : r) * lda;
#pragma GCC unroll 4
        for (int c = 0; c < V; ++c) total[r][c] = Add ? load(out + r * ldo + c * N) : vec<T>{};
    }
    for (int64_t p = 0; p < k; ++p) {
        const T* right = b + (Transposed && index ? index[p] : p) * ldb;
        vec<T> columns[V];
#pragma GCC unroll 4
        for (int c = 0; c < V; ++c) columns[c] = load(right + c * N);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const T left = Transposed ? a[p * lda + r] : rows[r][p];
#pragma GCC unroll 4
            for (int c = 0; c < V; ++c) total[r][c] += left * columns[c];
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int c = 0; c < V; ++c) store(out + r * ldo + c * N, total[r][c]);
}

template <bool Add, bool Transposed, int V, class T>
inline void columns_of_product(int64_t m, int64_t k, const T* a, int64_t lda, const int32_t* index, const T* b,
                               int64_t ldb, T* out, int64_t ldo) {
    constexpr int TALL = HRF_BYTES == 64 ? 8 : 4;
    int64_t row = 0;
    const auto left = [&](int64_t r) { return Transposed ? a + r : index ? a : a + r * lda; };
    const auto names = [&](int64_t r) { return index && !Transposed ? index + r : index; };
    for (; row + TALL <= m; row += TALL)
        tile<Add, Transposed, TALL, V>(k, left(row), lda, names(row), b, ldb, out + row * ldo, ldo);
    for (; row + 2 <= m; row += 2)
        tile<Add, Transposed, 2, V>(k, left(row), lda, names(row), b, ldb, out + row * ldo, ldo);
    for (; row < m; ++row) tile<Add, Transposed, 1, V>(k, left(row), lda, names(row), b, ldb, out + row * ldo, ldo);
}

// out (m, n) = a (m, k) @ b (k, n), or a[index] @ b; `Add` adds to out.
template <bool Add, class T>
void product(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb, T* out, int64_t ldo,
             const int32_t* index = nullptr) {
    constexpr int N = lanes<T>;
    assert(m >= 0 && k >= 0 && n % N == 0 && n <= ldb && n <= ldo);
    int64_t column = 0;
    for (; column + 2 * N <= n; column += 2 * N)
        columns_of_product<Add, false, 2>(m, k, a, lda, index, b + column, ldb, out + column, ldo);
    for (; column < n; column += N)
        columns_of_product<Add, false, 1>(m, k, a, lda, index, b + column, ldb, out + column, ldo);
}

// out (m, n) = aᵀ b for a (k, m) and b (k, n), or aᵀ b[index]; `Add` adds to out.
template <bool Add, class T>
void product_transposed(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb, T* out,
                        int64_t ldo, const int32_t* index = nullptr) {
    constexpr int N = lanes<T>;
    assert(m >= 0 && k >= 0 && n % N == 0 && m <= lda && n <= ldb && n <= ldo);
    int64_t column = 0;
    for (; column + 2 * N <= n; column += 2 * N)
        columns_of_product<Add, true, 2>(m, k, a, lda, index, b + column, ldb, out + column, ldo);
    for (; column < n; column += N)
        columns_of_product<Add, true, 1>(m, k, a, lda, index, b + column, ldb, out + column, ldo);
}

template <class T>
inline void clear(T* row, int64_t n) {
    std::memset(row, 0, n * sizeof(T));
}

template <class T>
inline void copy(const T* row, int64_t n, T* out) {
    std::memcpy(out, row, n * sizeof(T));
}

template <class T>
inline void fill(T* row, int64_t n, T number) {
    for (int64_t j = 0; j < n; ++j) row[j] = number;
}

template <class T>
inline void scale(T* row, int64_t n, T factor) {
    for (int64_t j = 0; j < n; ++j) row[j] *= factor;
}

template <class T>
inline void scaled(const T* row, int64_t n, T factor, T* __restrict out) {
    for (int64_t j = 0; j < n; ++j) out[j] = row[j] * factor;
}

template <class T>
inline void add_scaled(T* __restrict total, const T* row, int64_t n, T factor) {
    for (int64_t j = 0; j < n; ++j) total[j] += factor * row[j];
}

template <class T>
inline T dot(const T* a, const T* b, int64_t n) {
    constexpr int N = lanes<T>;
    const int64_t whole = n - n % N;
    vec<T> total{};
    for (int64_t j = 0; j < whole; j += N) total += load(a + j) * load(b + j);
    T rest = 0;
    for (int64_t j = whole; j < n; ++j) rest += a[j] * b[j];
    return sum<T>(total) + rest;
}

}  // namespace hrf
