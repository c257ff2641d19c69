// Vectors as wide as the instruction set, and the functions of them that the loops need.
//
// Everything is written with the compiler's vector types, so that one source serves SSE2, AVX2, AVX-512 and NEON:
// load, store, splat, exp2 and bits_of are the names to know.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#define HRF_BYTES 64
#elif defined(__AVX2__)
#define HRF_BYTES 32
#else
#define HRF_BYTES 16
#endif

namespace hrf {

template <class T>
struct Lanes {
    using Integer = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
    typedef T Vector __attribute__((vector_size(HRF_BYTES)));
    typedef Integer Mask __attribute__((vector_size(HRF_BYTES)));
    static constexpr int count = HRF_BYTES / sizeof(T);
};

template <class T>
using vec = typename Lanes<T>::Vector;
template <class T>
using mask = typename Lanes<T>::Mask;
template <class T>
constexpr int lanes = Lanes<T>::count;

// Finite, so that a difference of two scales is never NaN.
template <class T>
constexpr T LOWEST = T(-1e30);
template <class T>
constexpr T TINY = T(1e-30);
constexpr double LOG2E = 1.4426950408889634;

template <class T>
inline vec<T> load(const T* place) {
    vec<T> v;
    std::memcpy(&v, place, sizeof v);
    return v;
}

template <class T>
inline void store(T* place, vec<T> v) {
    std::memcpy(place, &v, sizeof v);
}

template <class T>
inline vec<T> splat(T number) {
    return vec<T>{} + number;
}

template <class V>
inline V larger(V a, V b) {
    return a > b ? a : b;
}

template <class V>
inline V lesser(V a, V b) {
    return a < b ? a : b;
}

template <class T>
inline T sum(vec<T> v) {
#if HRF_BYTES == 64
    if constexpr (sizeof(T) == 4)
        return _mm512_reduce_add_ps((__m512)v);
    else
        return _mm512_reduce_add_pd((__m512d)v);
#else
    T total = 0;
    for (int i = 0; i < lanes<T>; ++i) total += v[i];
    return total;
#endif
}

// One bit per lane, set where the mask is.
inline unsigned bits_of(mask<float> m) {
#if HRF_BYTES == 64
    return _mm512_movepi32_mask((__m512i)m);
#elif HRF_BYTES == 32
    return _mm256_movemask_ps((__m256)m);
#elif defined(__SSE2__)
    return _mm_movemask_ps((__m128)m);
#else
    unsigned bits = 0;
    for (int i = 0; i < lanes<float>; ++i) bits |= (m[i] != 0) << i;
    return bits;
#endif
}

inline unsigned bits_of(mask<double> m) {
    unsigned bits = 0;
    for (int i = 0; i < lanes<double>; ++i) bits |= (m[i] != 0) << i;
    return bits;
}

template <class T>
struct Float;

template <>
struct Float<float> {
    static constexpr int mantissa = 23, bias = 127, terms = 5;
    static constexpr float magic = 12582912.0f;  // 1.5 · 2²³: adding it rounds to a whole number
    static constexpr float lowest_power = -126, highest_power = 126;
};

template <>
struct Float<double> {
    static constexpr int mantissa = 52, bias = 1023, terms = 11;
    static constexpr double magic = 6755399441055744.0;  // 1.5 · 2⁵²
    static constexpr double lowest_power = -1022, highest_power = 1022;
};

// e^z for |z| ≤ log(2)/2, by Taylor's polynomial as long as rounding demands.
template <class T>
inline vec<T> exp_of_fraction(vec<T> z) {
    constexpr double c[] = {1.0 / 6227020800.0,
                            1.0 / 479001600.0,
                            1.0 / 39916800.0,
                            1.0 / 3628800.0,
                            1.0 / 362880.0,
                            1.0 / 40320.0,
                            1.0 / 5040.0,
                            1.0 / 720.0,
                            1.0 / 120.0,
                            1.0 / 24.0,
                            1.0 / 6.0,
                            0.5,
                            1.0,
                            1.0};
    constexpr int first = sizeof(T) == 4 ? 6 : 0;
    vec<T> power = splat<T>(T(c[first]));
    for (int i = first + 1; i < 14; ++i) power = power * z + T(c[i]);
    return power;
}

// 2^t; t below the normal range counts as its lowest power, t above as its highest. NaN becomes the lowest.
template <class T>
inline vec<T> exp2(vec<T> t) {
    using F = Float<T>;
    t = larger(t, splat<T>(F::lowest_power));
    t = lesser(t, splat<T>(F::highest_power));
    const vec<T> shifted = t + F::magic;  // its last bits hold the whole number
    const vec<T> z = t - (shifted - F::magic);
    vec<T> power;
    if constexpr (sizeof(T) == 4) {
        // Chebyshev's interpolation on [−1/2, 1/2]: relative error 1e-7, less than rounding.
        power = splat<T>(1.339086336e-3f);
        power = power * z + 9.676031918e-3f;
        power = power * z + 5.550357114e-2f;
        power = power * z + 2.402210749e-1f;
        power = power * z + 6.931471880e-1f;
        power = power * z + 1.000000075f;
    } else {
        power = exp_of_fraction<T>(z * T(0.6931471805599453));
    }
    const mask<T> exponent = ((mask<T>)shifted + F::bias) << F::mantissa;
    return power * (vec<T>)exponent;
}

template <class T>
inline T exp2_one(T t) {
    return exp2<T>(splat<T>(t))[0];
}

// e^t, accurate for any t whose result is a normal number; below, the least normal number.
template <class T>
inline vec<T> exp(vec<T> t) {
    using F = Float<T>;
    constexpr T high = sizeof(T) == 4 ? T(0.693359375) : T(0.693147180369123816490);
    constexpr T low = sizeof(T) == 4 ? T(-2.12194440e-4) : T(1.90821492927058770002e-10);
    t = larger(t, splat<T>(T(F::lowest_power * 0.6931471805599453)));
    t = lesser(t, splat<T>(T(F::highest_power * 0.6931471805599453)));
    const vec<T> shifted = t * T(LOG2E) + F::magic;
    const vec<T> whole = shifted - F::magic;
    const vec<T> z = (t - whole * high) - whole * low;
    const mask<T> exponent = ((mask<T>)shifted + F::bias) << F::mantissa;
    return exp_of_fraction<T>(z) * (vec<T>)exponent;
}

// e^t, and 0 where that is no normal number.
template <class T>
inline vec<T> exp_or_zero(vec<T> t) {
    return t < T(Float<T>::lowest_power * 0.6931471805599453) ? vec<T>{} : exp<T>(t);
}

// The nearest whole numbers, for |t| below 2²² in float32 and 2⁵¹ in float64.
template <class T>
inline vec<T> rounded(vec<T> t) {
    return (t + Float<T>::magic) - Float<T>::magic;
}

// e^t and e^−t over 2^power, for whole powers of at least |t| log₂ e − 1/2; 0 where that is no normal number.
//
// With t = n log 2 + z, e^z and e^−z are the sum and the difference of the even and the odd terms of one series.
template <class T>
inline void exp_pair(vec<T> t, vec<T> power, vec<T>& plus, vec<T>& minus) {
    using F = Float<T>;
    constexpr T high = sizeof(T) == 4 ? T(0.693359375) : T(0.693147180369123816490);
    constexpr T low = sizeof(T) == 4 ? T(-2.12194440e-4) : T(1.90821492927058770002e-10);
    constexpr double even[] = {1.0 / 479001600.0, 1.0 / 3628800.0, 1.0 / 40320.0, 1.0 / 720.0, 1.0 / 24.0, 0.5, 1.0};
    constexpr double odd[] = {
        1.0 / 6227020800.0, 1.0 / 39916800.0, 1.0 / 362880.0, 1.0 / 5040.0, 1.0 / 120.0, 1.0 / 6.0, 1.0};
    constexpr int first = sizeof(T) == 4 ? 3 : 0;
    const vec<T> n = rounded<T>(t * T(LOG2E)), z = (t - n * high) - n * low, square = z * z;
    vec<T> e = splat<T>(T(even[first])), o = splat<T>(T(odd[first]));
    for (int i = first + 1; i < 7; ++i) e = e * square + T(even[i]), o = o * square + T(odd[i]);
    const auto power_of_two = [](vec<T> whole) {
        const vec<T> exponent = larger(whole, splat<T>(T(-F::bias)));  // of which 2^exponent is 0
        return (vec<T>)(((mask<T>)(exponent + F::magic) + F::bias) << F::mantissa);
    };
    plus = (e + z * o) * power_of_two(n - power);
    minus = (e - z * o) * power_of_two(-n - power);
}

// log₂ of positive normal numbers: 2/log 2 · atanh((m − 1)/(m + 1)) of the mantissa m in [√½, √2), plus the exponent.
template <class T>
inline vec<T> log2(vec<T> t) {
    using F = Float<T>;
    const mask<T> bits = (mask<T>)t, root = (mask<T>)splat<T>(T(0.7071067811865476));
    const mask<T> exponent = (bits - root) >> F::mantissa;  // arithmetic shift
    const vec<T> m = (vec<T>)(bits - (exponent << F::mantissa));
    const vec<T> s = (m - 1) / (m + 1), square = s * s;
    vec<T> series = splat<T>(T(0));
    for (int k = 2 * F::terms + 1; k > 0; k -= 2) series = series * square + T(2 * LOG2E / k);
    vec<T> whole;
    if constexpr (sizeof(T) == 4) {
        whole = __builtin_convertvector(exponent, vec<T>);
    } else {
        whole = (vec<T>)((mask<T>)splat<T>(F::magic) + exponent) - F::magic;
    }
    return series * s + whole;
}

// cos t and sin t; in float32 for |t| up to 6,000.
template <class T>
inline void cos_sin(vec<T> t, vec<T>& cosine, vec<T>& sine) {
    if constexpr (sizeof(T) == 8) {
        for (int i = 0; i < lanes<T>; ++i) cosine[i] = std::cos(t[i]), sine[i] = std::sin(t[i]);
    } else {
        // π/2 in three terms; products of the first two with integers up to 4,096 are exact.
        constexpr float first = 0x1.92p+0f, second = 0x1.fb4p-12f, third = 0x1.4442d2p-24f;
        const vec<T> shifted = t * 0.6366197723675814f + Float<T>::magic;
        const vec<T> whole = shifted - Float<T>::magic;
        const vec<T> z = ((t - whole * first) - whole * second) - whole * third, s = z * z;
        const vec<T> odd = z * (1 - s * (1 / 6.0f - s * (1 / 120.0f - s * (1 / 5040.0f - s * (1 / 362880.0f)))));
        const vec<T> even = 1 - s * (0.5f - s * (1 / 24.0f - s * (1 / 720.0f - s * (1 / 40320.0f))));
        const mask<T> quarter = (mask<T>)shifted;  // its last two bits
        const mask<T> swapped = (quarter & 1) != 0, negative = (quarter & 2) != 0;
        const vec<T> c = swapped ? -odd : even, d = swapped ? even : odd;
        cosine = negative ? -c : c;
        sine = negative ? -d : d;
    }
}

}  // namespace hrf
