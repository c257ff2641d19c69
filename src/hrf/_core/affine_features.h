// Features of affine exponents (`AffineExponents` of affine_exponents.py) of some tokens, and the way back for gradients.
//
// Tokens are columns, so that lanes are tokens. Features are (D, T), up to a power of two per token, which is in its log
// scale: the largest exponential is between 1/√2 and √2, whatever the norm.
#pragma once

#include "products.h"

namespace hrf {

constexpr int64_t CHUNK = 64;  // tokens at a time

enum Exponents { PAIRS, SINGLE, TURNS };  // features exp(±p), exp(p), or cos p and sin p

// Vectors of rows, which are heads of batch elements; numbers between neighbours. The numbers of a vector are contiguous.
struct Strided {
    const void* start;
    int64_t batch, head, token;

    template <class T>
    const T* at(int64_t row, int64_t heads, int64_t place) const {
        return static_cast<const T*>(start) + row / heads * batch + row % heads * head + place * token;
    }
};

// Vectors and their map: matrix (maps, d, columns), the same transposed (maps, columns, padded d), offset (maps, columns + 1).
// The first m columns give p. The others, where there are any, give u, and the last one adds to the log scale, which has
// −‖u‖²/2 in place of −square ‖x‖²/2. The last offset is a constant of the log scale. Row r has map r % heads % maps.
struct MapSide {
    Strided tokens;
    const void *matrix, *transposed, *offset;
    void* gradient;  // of tokens, (N, ·, d)
    int64_t maps;
};

struct AffineMap {
    double square;
    int64_t heads, dim, m, columns, exponents;

    int64_t features() const { return exponents == SINGLE ? m : 2 * m; }
};

// Tokens of a chunk, a column each.
template <class T>
struct Mapped {
    T *x, *features, *extra, *logs;  // (d, CHUNK), (D, CHUNK), (columns − m, CHUNK), (CHUNK,)
};

// Write rows of tokens, `stride` numbers apart, as columns; zeros for those to ignore and for columns past the last.
template <class T>
void load_tokens(const T* x, int64_t stride, const uint8_t* ignore, int64_t n, int64_t d, T* out) {
    typedef T Four __attribute__((vector_size(4 * sizeof(T))));
    const T none[4] = {};
    for (int64_t start = 0; start < padded(n); start += 4) {
        const T* rows[4];
        int64_t steps[4], k = 0;
        for (int64_t q = 0; q < 4; ++q) {
            steps[q] = start + q < n && !(ignore && ignore[start + q]);
            rows[q] = steps[q] ? x + (start + q) * stride : none;
        }
        for (; k + 4 <= d; k += 4) {
            Four a, b, c, e;
            std::memcpy(&a, rows[0] + k * steps[0], sizeof a), std::memcpy(&b, rows[1] + k * steps[1], sizeof b);
            std::memcpy(&c, rows[2] + k * steps[2], sizeof c), std::memcpy(&e, rows[3] + k * steps[3], sizeof e);
            const Four f = {a[0], b[0], a[1], b[1]}, g = {a[2], b[2], a[3], b[3]};
            const Four h = {c[0], e[0], c[1], e[1]}, i = {c[2], e[2], c[3], e[3]};
            const Four columns[] = {
                {f[0], f[1], h[0], h[1]}, {f[2], f[3], h[2], h[3]}, {g[0], g[1], i[0], i[1]}, {g[2], g[3], i[2], i[3]}};
            for (int64_t j = 0; j < 4; ++j) std::memcpy(out + (k + j) * CHUNK + start, &columns[j], sizeof(Four));
        }
        for (; k < d; ++k)
            for (int64_t q = 0; q < 4; ++q) out[k * CHUNK + start + q] = rows[q][k * steps[q]];
    }
}

// One vector of tokens: replace p by features; return the power of two that they lack, or NaN where the range is left.
template <class T>
vec<T> take_exponentials(const AffineMap& a, const T* offset, T* p) {
    const int64_t m = a.m;
    vec<T> largest = splat<T>(a.exponents == SINGLE ? LOWEST<T> : T(0));
    for (int64_t j = 0; j < m; ++j) {
        const vec<T> t = load(p + j * CHUNK) + offset[j];
        largest = larger(largest, a.exponents == SINGLE ? t : larger(t, -t));
    }
    const T limit = a.exponents == TURNS ? (sizeof(T) == 4 ? T(6000) : T(1e15)) : T(1e6);
    const mask<T> good = larger(largest, -largest) < limit;
    const vec<T> whole = a.exponents == TURNS ? vec<T>{} : rounded<T>(largest * T(LOG2E));
    for (int64_t j = 0; j < m; ++j) {
        T* place = p + j * CHUNK;
        const vec<T> t = load(place) + offset[j];
        vec<T> one, other;
        if (a.exponents == TURNS)
            cos_sin<T>(t, one, other);
        else
            exp_pair<T>(t, whole, one, other);
        store(place, one);
        if (a.exponents != SINGLE) store(place + m * CHUNK, other);
    }
    return good ? whole : splat<T>(std::numeric_limits<T>::quiet_NaN());
}

// Map n tokens of a row; return whether all log scales are finite and all exponents in range.
template <class T>
bool map_chunk(const AffineMap& a, const MapSide& side, int64_t row, const T* x, int64_t stride, const uint8_t* ignore,
               int64_t n, const Mapped<T>& to) {
    const int64_t d = a.dim, m = a.m, head = row % a.heads % side.maps, columns = padded(n), more = a.columns - m;
    const T* matrix = static_cast<const T*>(side.matrix) + head * d * a.columns;
    const T* offset = static_cast<const T*>(side.offset) + head * (a.columns + 1);
    load_tokens(x, stride, ignore, n, d, to.x);
    product_transposed<false>(m, columns, d, matrix, a.columns, to.x, CHUNK, to.features, CHUNK);
    if (more) product_transposed<false>(more, columns, d, matrix + m, a.columns, to.x, CHUNK, to.extra, CHUNK);
    bool good = true;
    for (int64_t c = 0; c < columns; c += lanes<T>) {
        const vec<T> whole = take_exponentials(a, offset, to.features + c);
        vec<T> square{}, log = whole * T(0.6931471805599453) + offset[a.columns];
        for (int64_t k = 0; k + 1 < more; ++k) {
            const vec<T> u = load(to.extra + k * CHUNK + c) + offset[m + k];
            store(to.extra + k * CHUNK + c, u);
            square += u * u;
        }
        if (more) {
            log += load(to.extra + (more - 1) * CHUNK + c) + offset[a.columns - 1] - square * T(0.5);
        } else {
            for (int64_t k = 0; k < d; ++k) square += load(to.x + k * CHUNK + c) * load(to.x + k * CHUNK + c);
            log -= square * T(0.5 * a.square);
        }
        store(to.logs + c, log);
        good = good && !bits_of(log - log != 0);
    }
    return good;
}

// Turn the gradients of the features of n tokens into the gradients of p, in place.
template <class T>
void pull_exponents(const AffineMap& a, const T* features, int64_t n, T* gradients) {
    const int64_t m = a.m, more = a.exponents == SINGLE ? 0 : m * CHUNK;
    for (int64_t j = 0; j < m; ++j)
        for (int64_t c = 0; c < padded(n); c += lanes<T>) {
            const int64_t place = j * CHUNK + c;
            const vec<T> one = load(features + place), other = load(features + place + more);
            const vec<T> g = load(gradients + place), h = load(gradients + place + more);
            store(gradients + place, a.exponents == PAIRS   ? one * g - other * h
                                     : a.exponents == TURNS ? one * h - other * g
                                                            : one * g);
        }
}

}  // namespace hrf
