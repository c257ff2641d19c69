// Angular hybrids by sign code: sums over the keys with each value of each bit, which queries read.
//
// Codes are the leaves of a binary tree, with the highest bit at its root. Tokens are visited in the order of their
// codes. On the way up from a leaf, the sum of a branch is added to that of its parent and to the state of its bit; on the
// way down, a branch is its parent plus the state of its bit. So a code costs about two additions of states, however many
// bits it has. No difference is taken: a base whose weight is 0 for all keys gets exactly 0.
//
// A state is a row of numbers: the sum of φ(y) v(y)ᵀ, (F, W), then the sum of φ(y), (F,), with padded F features and W
// columns. Features are computed for a few tokens at a time, right before the product that needs them.
#pragma once

#include <algorithm>

#include "products.h"
#include "threads.h"

namespace hrf {

constexpr int64_t SOME_TOKENS = 32;

// Features of a base: exp(p), exp(±p), or cos p and sin p, for n products p from `start` on.
struct Base {
    int64_t kind, start, n;
    static constexpr int64_t EXP = 0, EXP_BOTH = 1, COS_SIN = 2;
    int64_t width() const { return kind == EXP ? n : 2 * n; }
};

// Projections, weights and codes of the tokens of R rows; tasks are `size` tokens of one row.
struct PrepareCodes {
    const void* tokens;   // u, (R, L, d)
    const void* omega;    // (d, M), or (R, d, M): for both bases, which may share it, then for the signs, then padding
    const int64_t* bits;  // signs per group, (G,)
    const Base* bases;    // (2,)
    const void* logs;     // logarithms of weights, a + b ‖u‖²/2 for each base, (2, 2)
    void *products, *weights;  // receive ωᵀu, (R, L, M), and the weights of both bases, (R, L, 2)
    int32_t* codes;            // receives the code of each group, (R, L, G)
    void* largest;             // receives the largest |ωᵀu| and the largest |log weight|, (2,)
    int64_t rows, length, dim, columns, groups, omega_stride, size, threads, is_double;
};

template <class T>
void prepare_codes(const PrepareCodes& a) {
    const int64_t parts = (a.length + a.size - 1) / a.size, m = a.columns;
    const int64_t real = std::max(a.bases[0].start + a.bases[0].n, a.bases[1].start + a.bases[1].n);
    std::vector<T> tops(2 * a.rows * parts, T(0));
    const T* logs = static_cast<const T*>(a.logs);
    parallel(a.rows * parts, int(a.threads), [&](int64_t task, int) {
        const int64_t row = task / parts, begin = task % parts * a.size, end = std::min(a.length, begin + a.size);
        const T* omega = static_cast<const T*>(a.omega) + row * a.omega_stride;
        T &top = tops[2 * task], &top_log = tops[2 * task + 1];
        for (int64_t first = begin; first < end; first += SOME_TOKENS) {
            const int64_t some = std::min(SOME_TOKENS, end - first), place = row * a.length + first;
            const T* u = static_cast<const T*>(a.tokens) + place * a.dim;
            T *products = static_cast<T*>(a.products) + place * m, *weights = static_cast<T*>(a.weights) + 2 * place;
            product<false>(some, m, a.dim, u, a.dim, omega, m, products, m);
            for (int64_t i = 0; i < some; ++i) {
                const T square = dot(u + i * a.dim, u + i * a.dim, a.dim) / 2;
                for (int base = 0; base < 2; ++base) {
                    const T log = logs[2 * base] + logs[2 * base + 1] * square;
                    top_log = std::abs(log) > top_log ? std::abs(log) : top_log;
                    weights[2 * i + base] = std::exp(log);
                }
                const T* p = products + i * m;
                for (int64_t j = 0; j < real; ++j) {
                    const T size = std::abs(p[j]);
                    top = size > top ? size : top;
                    if (size != size) top = std::numeric_limits<T>::infinity();
                }
                int64_t next = real;
                for (int64_t group = 0; group < a.groups; ++group) {
                    int32_t code = 0;
                    for (int64_t bit = 0; bit < a.bits[group]; ++bit) code |= (p[next++] >= 0) << bit;
                    a.codes[(place + i) * a.groups + group] = code;
                }
            }
        }
    });
    T* largest = static_cast<T*>(a.largest);
    largest[0] = largest[1] = 0;
    for (size_t i = 0; i < tops.size(); ++i) largest[i % 2] = std::max(largest[i % 2], tops[i]);
}

// Sums by bit over the keys, or what queries read from them. Tasks are `size` tokens of one row.
struct CodeSums {
    const void *products, *weights;  // of `prepare_codes`
    const int32_t* codes;            // likewise; a code out of range leaves its key out
    const void* values;              // (R, L, c), of keys
    void* out;                       // (R, L, W + 1): sums over values, and over ones in column c, of queries
    void* states;  // by value of each bit, the lowest bit first: (R, parts, G, 2g, ·), or (R, G, 2g, ·) to read
    const int64_t* bits;
    const Base* bases;
    int64_t rows, length, columns, groups, largest_bits, width, size, threads, is_double;

    int64_t features() const { return padded(bases[0].width() + bases[1].width()); }  // F
    int64_t state() const { return features() * (padded(width) + 1); }
    int64_t states_per_group() const { return 2 * largest_bits * state(); }
};

// Write the features of both bases of one token side by side, with zeros up to the padded width.
template <class T>
void code_features(const T* products, const T* weights, const Base* bases, int64_t features, T* p, T* out) {
    constexpr int N = lanes<T>;
    int64_t column = 0;
    for (int base = 0; base < 2; ++base) {
        const auto [kind, start, n] = bases[base];
        copy(products + start, n, p);
        const T weight = weights[base];
        // Whole vectors: what is written beyond n is overwritten by what follows.
        for (int64_t j = 0; j < n; j += N) {
            vec<T> first, second;
            if (kind == Base::COS_SIN)
                cos_sin<T>(load(p + j), first, second), store(p + j, second);
            else
                first = exp<T>(load(p + j));
            store(out + column + j, first * weight);
        }
        column += n;
        if (kind == Base::EXP) continue;
        for (int64_t j = 0; j < n; j += N)
            store(out + column + j, (kind == Base::COS_SIN ? load(p + j) : exp<T>(-load(p + j))) * weight);
        column += n;
    }
    clear(out + column, features - column);
}

// A path from the root to a leaf, and buffers for a few tokens.
template <class T>
struct CodePath {
    const CodeSums& a;
    int64_t features, size;
    std::vector<T> branches, left, right, p;
    std::vector<int32_t> order, ends;

    explicit CodePath(const CodeSums& call)
        : a(call),
          features(call.features()),
          size(call.state()),
          branches((call.largest_bits + 1) * size),
          left((SOME_TOKENS + 1) * features),
          right(SOME_TOKENS * padded(call.width)),
          p(std::max(call.bases[0].n, call.bases[1].n) + PAD) {}

    T* branch(int64_t level) { return branches.data() + level * size; }

    // Sort tokens by the codes of a group.
    void sort(const int32_t* codes, int64_t n, int64_t group) {
        const int32_t n_codes = 1 << a.bits[group];
        ends.assign(n_codes + 1, 0);
        for (int64_t i = 0; i < n; ++i)
            if (const int32_t code = codes[i * a.groups + group]; code < n_codes) ++ends[code + 1];
        for (int32_t code = 0; code < n_codes; ++code) ends[code + 1] += ends[code];
        order.resize(ends[n_codes]);
        for (int64_t i = 0; i < n; ++i)
            if (const int32_t code = codes[i * a.groups + group]; code < n_codes) order[ends[code]++] = int32_t(i);
        ends.pop_back();
    }

    // Add the branches of the lowest bits to their parents and to the states of their bits, and clear them.
    void up(int64_t bits, int32_t code, int64_t n_bits, T* states) {
        for (int64_t bit = 0; bit < n_bits; ++bit) {
            T *own = branch(bits - bit), *parent = branch(bits - bit - 1),
              *state = states + (2 * bit + (code >> bit & 1)) * size;
            for (int64_t i = 0; i < size; ++i) {
                const T s = own[i];
                parent[i] += s, state[i] += s, own[i] = 0;
            }
        }
    }

    // Compute the branches of the lowest bits from their parents and the states of their bits. Features of the first base
    // read the state of the other value of a bit, those of the second the state of its own.
    void down(int64_t bits, int32_t code, int64_t n_bits, const T* states) {
        const int64_t w = padded(a.width), first = a.bases[0].width();
        const int64_t bounds[] = {0, first * w, features * w, features * w + first, size};
        for (int64_t bit = n_bits - 1; bit >= 0; --bit) {
            T *own = branch(bits - bit), *parent = branch(bits - bit - 1);
            for (int k = 0; k < 4; ++k) {
                const int64_t value = code >> bit & 1, taken = k % 2 ? value : 1 - value;
                const T* state = states + (2 * bit + taken) * size;
                for (int64_t i = bounds[k]; i < bounds[k + 1]; ++i) own[i] = parent[i] + state[i];
            }
        }
    }

    // Call visit(code, first, n) for all tokens, in batches of one code, and change(code, bits to change) between codes.
    template <class Change, class Visit>
    void walk(int64_t group, const Change& change, const Visit& visit) {
        int32_t before = -1;
        int64_t start = 0;
        for (int32_t code = 0; code < int32_t(ends.size()); ++code) {
            if (ends[code] <= start) continue;
            const int64_t bits = a.bits[group];
            change(before, code, before < 0 ? bits : 32 - __builtin_clz(before ^ code));
            for (; start < ends[code]; start += SOME_TOKENS)
                visit(start, std::min<int64_t>(SOME_TOKENS, ends[code] - start));
            start = ends[code], before = code;
        }
        if (before >= 0) change(before, -1, a.bits[group]);
    }
};

// Add the sums over the keys with each value of each bit, or let queries read them.
template <bool Read, class T>
void code_sums(const CodeSums& a) {
    const int64_t parts = (a.length + a.size - 1) / a.size, w = padded(a.width), f = a.features();
    parallel(a.rows * parts, int(a.threads), [&](int64_t task, int) {
        const int64_t row = task / parts, begin = task % parts * a.size, n_tokens = std::min(a.length - begin, a.size);
        const int64_t place = row * a.length + begin, per_row = a.groups * a.states_per_group();
        const T *products = static_cast<const T*>(a.products) + place * a.columns,
                *weights = static_cast<const T*>(a.weights) + 2 * place;
        T* out = static_cast<T*>(a.out) + place * (w + 1);
        const T* values = static_cast<const T*>(a.values) + place * a.width;
        CodePath<T> path(a);
        for (int64_t group = 0; group < a.groups; ++group) {
            T* states = static_cast<T*>(a.states) + (Read ? row : task) * per_row + group * a.states_per_group();
            const int64_t bits = a.bits[group];
            path.sort(a.codes + place * a.groups, n_tokens, group);
            std::fill(path.branches.begin(), path.branches.end(), T(0));
            T *leaf = path.branch(bits), *mass = leaf + f * w;
            const auto change = [&](int32_t before, int32_t code, int64_t n_bits) {
                if (!Read && before >= 0) path.up(bits, before, n_bits, states);
                if (Read && code >= 0) path.down(bits, code, n_bits, states);
            };
            path.walk(group, change, [&](int64_t start, int64_t n) {
                for (int64_t i = 0; i < n; ++i) {
                    const int64_t token = path.order[start + i];
                    code_features(products + token * a.columns, weights + 2 * token, a.bases, f, path.p.data(),
                                  &path.left[i * f]);
                    if constexpr (!Read) {
                        copy(values + token * a.width, a.width, &path.right[i * w]);
                        clear(&path.right[i * w + a.width], w - a.width);
                        add_scaled(mass, &path.left[i * f], f, T(1));
                    }
                }
                if constexpr (!Read) {
                    product_transposed<true>(f, w, n, path.left.data(), f, path.right.data(), w, leaf, w);
                } else {
                    product<false>(n, w, f, path.left.data(), f, leaf, w, path.right.data(), w);
                    for (int64_t i = 0; i < n; ++i) {
                        T* own = out + path.order[start + i] * (w + 1);
                        const T total = dot(&path.left[i * f], mass, f);
                        for (int64_t j = 0; j < a.width; ++j) own[j] = path.right[i * w + j] + (group ? own[j] : T(0));
                        own[a.width] = total + (group ? own[a.width] : T(0));
                    }
                }
            });
        }
    });
}

}  // namespace hrf
