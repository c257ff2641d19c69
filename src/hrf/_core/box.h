// Outputs moved into the box of the values that they see, row by row; the twin is `bounded` of denominator.py.
#pragma once

#include <algorithm>

#include "threads.h"

namespace hrf {

struct Box {
    void* out;             // quotients, (N, rows, d_v); moved in place
    const uint8_t* small;  // rows whose denominator is too small, (N, rows): they become the mean
    void *total, *low,
        *high;           // sums of the values seen before and their number, (N, d_v + 1); minimum and maximum, (N, d_v)
    const void* values;  // of the keys that rows see one after the other, (N, keys, d_v + 1), last 1, or 0 to ignore
    uint8_t *clipped, *moved;  // (N, rows): rows with a number that moved; (N, rows, d_v): which numbers, or null
    double rounding;           // moves of at most this share of the largest magnitude in the box are not marked
    int64_t n, rows, width, keys, groups, size, threads, is_double;
};

template <class T>
void clip_rows(const Box& a) {
    // Rows that see values one after the other write to their box, and have a head to themselves.
    const int64_t size = a.keys ? a.rows : a.size, parts = a.rows ? (a.rows + size - 1) / size : 0, w = a.width;
    parallel(a.n * parts, int(a.threads), [&](int64_t task, int) {
        const int64_t head = task / parts, begin = task % parts * size, end = std::min(a.rows, begin + size);
        T* total = static_cast<T*>(a.total) + head * (w + 1);
        T *low = static_cast<T*>(a.low) + head * w, *high = static_cast<T*>(a.high) + head * w;
        for (int64_t i = begin; i < end; ++i) {
            const int64_t row = head * a.rows + i;
            T* out = static_cast<T*>(a.out) + row * w;
            const T* value = static_cast<const T*>(a.values) + (head * a.keys + (a.keys ? i / a.groups : 0)) * (w + 1);
            if (a.keys && i % a.groups == 0 && value[w] != 0) {
                total[w] += value[w];
                for (int64_t j = 0; j < w; ++j) {
                    total[j] += value[j];
                    low[j] = value[j] < low[j] ? value[j] : low[j];
                    high[j] = value[j] > high[j] ? value[j] : high[j];
                }
            }
            if (a.small[row]) {
                const T count = std::max(total[w], T(1));
                for (int64_t j = 0; j < w; ++j) out[j] = total[j] / count;
                continue;
            }
            int64_t n_moved = 0;
            for (int64_t j = 0; j < w; ++j) {
                const T above = out[j] > low[j] ? out[j] : low[j], inside = above < high[j] ? above : high[j];
                const T largest = -low[j] > high[j] ? -low[j] : high[j];
                const bool far = std::abs(out[j] - inside) > T(a.rounding) * largest;
                n_moved += far;
                if (a.moved) a.moved[row * w + j] = far;
                out[j] = inside;
            }
            a.clipped[row] = n_moved > 0;
        }
    });
}

}  // namespace hrf
