// Hashes of keys or values: Σ word · weight modulo 2⁶⁴, read about as fast as memory allows.
#pragma once

#include <algorithm>
#include <vector>

#include "threads.h"

namespace hrf {

struct Hashes {
    const void* words;        // (B, H, S, n) words of 1, 2 or 4 bytes; the n words of a vector are adjacent
    const uint32_t* weights;  // (S,) or more
    uint64_t* sums;           // (2, B, H, n): over the first `before` tokens, and over all
    int64_t batch, heads, length, n, batch_stride, head_stride, token_stride, before, bytes, threads;
};

template <class Word>
void hashes(const Hashes& a) {
    parallel(a.batch * a.heads, int(a.threads), [&](int64_t row, int) {
        const Word* words = static_cast<const Word*>(a.words) + row / a.heads * a.batch_stride + row % a.heads * a.head_stride;
        std::vector<uint64_t> total(a.n);
        uint64_t *first = a.sums + row * a.n, *all = first + a.batch * a.heads * a.n;
        for (int64_t s = 0; s <= a.length; ++s) {
            if (s == a.before) std::copy(total.begin(), total.end(), first);
            if (s == a.length) break;
            const Word* vector = words + s * a.token_stride;
            const uint64_t weight = a.weights[s];
            for (int64_t i = 0; i < a.n; ++i) total[i] += uint64_t(vector[i]) * weight;
        }
        std::copy(total.begin(), total.end(), all);
    });
}

}  // namespace hrf
