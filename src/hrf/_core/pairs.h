// Softmax numerators of blocks of queries, each of which meets a list of keys.
//
// Keys come in batches, on the scale of the largest product so far, as in online softmax. Products have a row per key and a
// column per query, so that each operation serves many queries at once.
#pragma once

#include <algorithm>

#include "products.h"
#include "threads.h"

namespace hrf {

struct Pairs {
    const int64_t* members;  // query at each place, (N, size)
    const uint8_t* filled;   // which places hold a query; they come first, (N, size)
    const int64_t* first;    // where the list of each block begins, (N,)
    const int64_t* lengths;  // keys from there that all queries of a block meet, (N, 1), or each query, (N, size)
    void *sums, *scales;  // (N, size, c), (N, size): Σ 2^(xᵀy) v(y) over 2^scale; untouched where a query meets no key
    const int64_t* tokens;       // all lists of keys
    const void *x, *y, *values;  // (·, d), (·, d), (·, c)
    int64_t n, size, dim, width, own_lengths, threads, is_double;
};

template <class T>
void pairs(const Pairs& a) {
    constexpr int64_t SOME = 64;
    const int64_t most = padded(a.size), w = padded(a.width), d = padded(a.dim),
                  share = std::max<int64_t>(1, a.n / (8 * a.threads));
    const T *x = static_cast<const T*>(a.x), *y = static_cast<const T*>(a.y), *values = static_cast<const T*>(a.values);
    parallel((a.n + share - 1) / share, int(a.threads), [&](int64_t task, int) {
        static thread_local Arena arena;
        const int64_t floats[] = {d * most, SOME * d, SOME * w, SOME * most, most * w, most, most, most};
        size_t bytes = 0;
        for (const int64_t n : floats) bytes += Arena::room<T>(n);
        arena.reset(bytes);
        T* buffers[8];
        for (int i = 0; i < 8; ++i) buffers[i] = arena.lend<T>(floats[i]);
        auto [own, keys, seen, weights, totals, top, step, mass] = buffers;
        for (int64_t block = task * share; block < std::min(a.n, (task + 1) * share); ++block) {
            const int64_t* lengths = a.lengths + block * (a.own_lengths ? a.size : 1);
            int64_t n = 0, longest = *lengths;
            while (n < a.size && a.filled[block * a.size + n]) ++n;
            if (a.own_lengths) longest = *std::max_element(lengths, lengths + a.size);
            const int64_t columns = padded(n);
            clear(own, d * columns);
            for (int64_t i = 0; i < n; ++i)
                for (int64_t k = 0; k < a.dim; ++k) own[k * columns + i] = x[a.members[block * a.size + i] * a.dim + k];
            clear(totals, columns * w);
            fill(top, columns, LOWEST<T>);
            for (int64_t start = 0; start < longest; start += SOME) {
                const int64_t some = std::min(SOME, longest - start);
                for (int64_t i = 0; i < some; ++i) {
                    const int64_t key = a.tokens[a.first[block] + start + i];
                    copy(y + key * a.dim, a.dim, keys + i * a.dim);
                    copy(values + key * a.width, a.width, seen + i * w);
                    clear(seen + i * w + a.width, w - a.width);
                }
                product<false>(some, columns, a.dim, keys, a.dim, own, columns, weights, columns);
                if (a.own_lengths)
                    for (int64_t i = 0; i < n; ++i)
                        for (int64_t j = std::max<int64_t>(0, lengths[i] - start); j < some; ++j)
                            weights[j * columns + i] = -std::numeric_limits<T>::infinity();
                for (int64_t i = 0; i < columns; i += lanes<T>) {
                    vec<T> largest = load(top + i);
                    for (int64_t j = 0; j < some; ++j) largest = larger(load(weights + j * columns + i), largest);
                    store(step + i, exp2<T>(load(top + i) - largest));
                    store(top + i, largest);
                    for (int64_t j = 0; j < some; ++j) {
                        const vec<T> t = load(weights + j * columns + i) - largest;
                        store(weights + j * columns + i, t > LOWEST<T> ? exp2<T>(t) : vec<T>{});
                    }
                }
                for (int64_t i = 0; i < n; ++i) scale(totals + i * w, w, step[i]);
                product_transposed<true>(n, w, some, weights, columns, seen, w, totals, w);
            }
            (void)mass;
            T* scales = static_cast<T*>(a.scales) + block * a.size;
            for (int64_t i = 0; i < n; ++i)
                if (top[i] > LOWEST<T>) {
                    scales[i] = top[i];
                    copy(totals + i * w, a.width, static_cast<T*>(a.sums) + (block * a.size + i) * a.width);
                }
            for (int64_t i = n; i < a.size; ++i) scales[i] = scales[0];  // empty places repeat the first query
        }
    });
}

}  // namespace hrf
