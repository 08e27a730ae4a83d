// Products of vectors in 8 bits with a query in float32, on the threads of a CPU.

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "threads.h"
#include "../vectors.h"

INLINE Vec numbers(const int8_t* p) {
#if defined(__AVX512F__) && LANES == 16
  return __builtin_convertvector((Ints)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), Vec);
#elif defined(__AVX2__) && LANES == 8
  return __builtin_convertvector((Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))), Vec);
#else
  Ints whole;
  for (int i = 0; i < LANES; ++i) whole[i] = p[i];
  return __builtin_convertvector(whole, Vec);
#endif
}

// scores[r] = scales[r] * (rows[r] . query); `width` is a multiple of 16.
extern "C" void ptm_words_scores(const int8_t* rows, const float* scales, const float* query, int64_t count, int64_t width,
                                 float* scores, int64_t threads) {
  auto part = [=](int64_t i) {
    for (int64_t r = count * i / threads, high = count * (i + 1) / threads; r < high; ++r) {
      const int8_t* row = rows + r * width;
      Vec one{}, two{};
      int64_t d = 0;
      for (; d + 2 * LANES <= width; d += 2 * LANES) {
        one += numbers(row + d) * load(query + d);
        two += numbers(row + d + LANES) * load(query + d + LANES);
      }
      if (d < width) one += numbers(row + d) * load(query + d);
      scores[r] = scales[r] * sum(one + two);
    }
  };
  together(threads, part);
}
