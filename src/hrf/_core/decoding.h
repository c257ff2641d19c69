// One step of decoding with features exp(±p), where p is affine in a vector (`Affine` of exponential_features.py).
//
// Rows are batch elements and heads in one axis, N of them, and each has a state. One or several consecutive rows share a
// key, and one or several consecutive queries a row. States are (N, c, D) here, with the features last: a line of a state
// is one column of the values.
#pragma once

#include <algorithm>
#include <cmath>

#include "products.h"
#include "threads.h"

namespace hrf {

// Vectors and their map: matrix (heads or 1, d, m or more), offset (heads or 1, · + 1).
struct Side {
    const void *tokens, *matrix, *offset;  // (n_tokens, d)
    void *features, *logs;  // (n, D): exp(±p) over its largest entry; (n,): the log of that entry with the log weight
    int64_t n_tokens, n, maps;
};

struct Step {
    Side query, key;
    const void* value;             // (·, d_v)
    const uint8_t* ignore;         // batch elements whose key is ignored, (B,)
    void *state, *scale, *total;   // (N, c, D), (N,), (N, d_v + 1): written
    void *products, *line, *sums;  // scratch buffers: (N, columns), (N, c), (·, c)
    void* out;                     // (·, d_v)
    int64_t* counts;               // queries that see a key, and too small denominators among these, per row, (N, 2)
    double square, floor;          // factor of −‖x‖²/2 in the log weight; denominators up to this are too small
    int64_t rows, heads, batch, n_values, dim, columns, features, lines, width, threads, is_double;
};

// Write the features of one vector and return the logarithm of their scale. The first m columns of the matrix give p; the
// others, where there are any, give u, and the last one adds to the log weight, which has −‖u‖²/2 in place of −‖x‖²/2.
template <class T>
T map_one(const Step& a, const T* x, const T* matrix, const T* offset, T* p, T* features) {
    constexpr int N = lanes<T>;
    const int64_t m = a.features / 2, n = a.columns;
    copy(offset, n, p);
    int64_t i = 0;
    for (; i + 4 <= a.dim; i += 4) {
        const T *one = matrix + i * n, *two = one + n, *three = two + n, *four = three + n;
        const T e = x[i], f = x[i + 1], g = x[i + 2], h = x[i + 3];
        for (int64_t j = 0; j < n; ++j) p[j] += (e * one[j] + f * two[j]) + (g * three[j] + h * four[j]);
    }
    for (; i < a.dim; ++i) add_scaled(p, matrix + i * n, n, x[i]);
    T largest = std::abs(p[0]);
    for (int64_t j = 1; j < m; ++j) largest = std::max(largest, std::abs(p[j]));
    int64_t j = 0;
    for (; j + N <= m; j += N) {
        store(features + j, exp<T>(load(p + j) - largest));
        store(features + m + j, exp<T>(-load(p + j) - largest));
    }
    for (; j < m; ++j) features[j] = std::exp(p[j] - largest), features[m + j] = std::exp(-p[j] - largest);
    const T log = offset[n] + largest;
    if (n == m) return log - T(a.square) * dot(x, x, a.dim) / 2;
    return log + p[n - 1] - dot(p + m, p + m, n - 1 - m) / 2;
}

// Map the queries and the keys of all rows; return whether all log weights are finite.
template <class T>
bool map_tokens(const Step& a) {
    std::atomic<bool> finite{true};
    parallel(a.rows, int(a.threads), [&](int64_t row, int) {
        for (const Side& side : {a.key, a.query}) {
            const int64_t per_row = side.n / a.rows, head = row % a.heads % side.maps;
            const T* matrix = static_cast<const T*>(side.matrix) + head * a.dim * a.columns;
            const T* offset = static_cast<const T*>(side.offset) + head * (a.columns + 1);
            for (int64_t place = row * per_row; place < (row + 1) * per_row; ++place) {
                const T* x = static_cast<const T*>(side.tokens) + place * side.n_tokens / side.n * a.dim;
                const T log = map_one(a, x, matrix, offset, static_cast<T*>(a.products) + row * a.columns,
                                      static_cast<T*>(side.features) + place * a.features);
                static_cast<T*>(side.logs)[place] = log;
                if (!std::isfinite(log)) finite = false;
            }
        }
    });
    return finite;
}

// Let a line of a state decay, add a key to it, and multiply with a query.
template <class T>
inline T add_key(T* state, int64_t n, T decay, const T* key, T value, const T* query) {
    constexpr int N = lanes<T>;
    vec<T> total{};
    int64_t j = 0;
    for (; j + N <= n; j += N) {
        const vec<T> s = load(state + j) * decay + load(key + j) * value;
        store(state + j, s);
        total += s * load(query + j);
    }
    T rest = 0;
    for (; j < n; ++j) {
        state[j] = state[j] * decay + key[j] * value;
        rest += state[j] * query[j];
    }
    return sum<T>(total) + rest;
}

// Add a key to the states of all rows, and attend.
template <class T>
void advance(const Step& a) {
    const int64_t n = a.query.n / a.rows, w = a.width, c = a.lines, d = a.features;
    parallel(a.rows, int(a.threads), [&](int64_t row, int) {
        const T* value = static_cast<const T*>(a.value) + row * a.n_values / a.rows * w;
        const T* key = static_cast<const T*>(a.key.features) + row * d;
        T *line = static_cast<T*>(a.line) + row * c, *total = static_cast<T*>(a.total) + row * (w + 1);
        T *state = static_cast<T*>(a.state) + row * c * d, decay = 1;
        clear(line, c);
        if (!a.ignore[row * a.batch / a.rows]) {
            T& scale = static_cast<T*>(a.scale)[row];
            const T log = static_cast<const T*>(a.key.logs)[row], top = std::max(scale, log);
            const T weight = std::exp(log - top);
            decay = std::exp(scale - top), scale = top;
            for (int64_t j = 0; j < w; ++j) line[j] = value[j] * weight, total[j] += value[j];
            line[w] = weight, total[w] += 1;
        }
        int64_t* counts = a.counts + 2 * row;
        counts[0] = counts[1] = 0;
        for (int64_t place = row * n; place < (row + 1) * n; ++place) {
            const T* query = static_cast<const T*>(a.query.features) + place * d;
            T *sums = static_cast<T*>(a.sums) + place * c, *out = static_cast<T*>(a.out) + place * w;
            for (int64_t j = 0; j < c; ++j)
                sums[j] = place == row * n ? add_key(state + j * d, d, decay, key, line[j], query)
                                           : dot(state + j * d, query, d);
            const bool good = sums[w] > T(a.floor) && sums[w] < std::numeric_limits<T>::infinity();
            for (int64_t j = 0; j < w; ++j) out[j] = good ? sums[j] / sums[w] : total[j] / std::max(total[w], T(1));
            if (total[w] > 0) ++counts[0], counts[1] += !good;
        }
    });
}

}  // namespace hrf
