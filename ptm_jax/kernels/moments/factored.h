// An update of Adafactor whose second moments are sums of rows and columns, in place. Three passes over a tensor, which the caches
// hold where it is small: sums of squares, the size of the update, the update.

#pragma once

#include <cmath>

#include "../parts.h"
#include "../types.h"

namespace factored {

namespace ffi = xla::ffi;

constexpr int64_t NUMBERS = 1 << 15, MOST = 64;  // numbers of a part, parts of a matrix: the order of the sums depends on nothing else
constexpr float TINY = 1e-30f, LEAST = 1e-3f;     // eps_1 and eps_2 of the paper
enum Scalars { B2, RATE, FACTOR, COUNT };
enum Shape { BEFORE, ROWS, BETWEEN, COLUMNS, AXES };  // a tensor is [before, rows, between, columns], a matrix for each `before, between`

struct Settings {
  float b2, rate, factor, threshold, decay, momentum;
  bool relative, averages;
  int64_t before, rows, between, columns;
};

// Of one tensor. row [before, rows, between] and column [before, between, columns] are means of squares, `by_row` and `by_column`
// their inverse square roots.
struct Tensor {
  const float *g, *param, *mu;
  float *new_param, *new_mu, *row, *column, *by_row, *by_column;
};

// Rows `first` to `last` of the matrices of one index `before`.
struct Part {
  int64_t before, first, last;
};

// The sum of term(four vectors' numbers) over `count` numbers: short sums of float, long ones of double.
template <typename Term>
INLINE double over(int64_t count, const Term& term) {
  double total = 0;
  for (int64_t from = 0; from < count;) {
    int64_t end = std::min(count, from + 128 * LANES);
    Vec sums = Vec{};
    for (; from + 4 * LANES <= end; from += 4 * LANES) {
      sums += (term(from, LANES) + term(from + LANES, LANES)) + (term(from + 2 * LANES, LANES) + term(from + 3 * LANES, LANES));
    }
    for (; from + LANES <= end; from += LANES) sums += term(from, LANES);
    if (from < end) sums += term(from, end - from), from = end;
    total += sum(sums);
  }
  return total;
}
INLINE Vec some_of(const float* p, int64_t count) { return count == LANES ? load(p) : read_some(p, count); }

// Writes the new moments of the rows, and adds the squares of each column to `columns` [between, columns]. Returns the sum of param^2.
static double squares(const Settings& s, const Tensor& x, const Part& part, float* columns) {
  const Vec factor = all(s.factor), tiny = all(TINY);
  const float rest = 1.0f - s.b2;
  const int64_t width = s.between * s.columns, start = (part.before * s.rows + part.first) * width;
  std::fill(columns, columns + width, 0.0f);
  for (int64_t r = part.first; r < part.last; ++r) {
    for (int64_t m = 0; m < s.between; ++m) {
      int64_t number = (part.before * s.rows + r) * s.between + m;
      const float* g = x.g + number * s.columns;
      float* to = columns + m * s.columns;
      double total = over(s.columns, [&](int64_t d, int64_t count) {
        Vec v = some_of(g + d, count) * factor;
        v = v * v + tiny;
        if (count == LANES) {
          store(to + d, load(to + d) + v);
          return v;
        }
        for (int64_t n = 0; n < LANES; ++n) n < count ? void(to[d + n] += v[n]) : void(v[n] = 0);
        return v;
      });
      x.row[number] = s.b2 * x.row[number] + rest * float(total / s.columns);
    }
  }
  if (!s.relative) return 0;
  const float* p = x.param + start;
  return over((part.last - part.first) * width, [&](int64_t d, int64_t count) {
    Vec v = some_of(p + d, count);
    return v * v;
  });
}

// The new moments of the columns from the sums of `parts` parts, and the inverse roots of both.
static void roots(const Settings& s, const Tensor& x, const float* sums, int64_t parts) {
  const float rest = 1.0f - s.b2;
  const int64_t width = s.between * s.columns;
  std::vector<double> totals(width);
  for (int64_t a = 0; a < s.before; ++a) {
    std::fill(totals.begin(), totals.end(), 0.0);
    for (int64_t n = 0; n < parts; ++n) {
      const float* some = sums + (a * parts + n) * width;
      for (int64_t d = 0; d < width; ++d) totals[d] += some[d];
    }
    for (int64_t d = 0; d < width; ++d) {
      float& column = x.column[a * width + d];
      column = s.b2 * column + rest * float(totals[d] / s.rows);
      x.by_column[a * width + d] = 1.0 / std::sqrt(double(column));
    }
    for (int64_t m = 0; m < s.between; ++m) {
      double mean = 0;
      for (int64_t r = 0; r < s.rows; ++r) mean += x.row[(a * s.rows + r) * s.between + m];
      mean /= s.rows;
      for (int64_t r = 0; r < s.rows; ++r) {
        int64_t number = (a * s.rows + r) * s.between + m;
        x.by_row[number] = 1.0 / std::sqrt(x.row[number] / mean);
      }
    }
  }
}

// The sum of (g by_row by_column)^2.
static double size(const Settings& s, const Tensor& x, const Part& part) {
  double total = 0;
  for (int64_t r = part.first; r < part.last; ++r) {
    for (int64_t m = 0; m < s.between; ++m) {
      int64_t number = (part.before * s.rows + r) * s.between + m;
      const float *g = x.g + number * s.columns, *by = x.by_column + (part.before * s.between + m) * s.columns;
      double by_row = double(x.by_row[number]) * s.factor;
      total += by_row * by_row * over(s.columns, [&](int64_t d, int64_t count) {
                 Vec v = some_of(g + d, count) * some_of(by + d, count);
                 return v * v;
               });
    }
  }
  return total;
}

// way = scale g by_row by_column, or its average; param' = param - rate (way + decay param).
template <bool AVERAGES>
static void place(const Settings& s, const Tensor& x, const Part& part, float scale) {
  const Vec rate = all(s.rate), decay = all(s.decay), momentum = all(s.momentum), rest = all(1.0f - s.momentum);
  for (int64_t r = part.first; r < part.last; ++r) {
    for (int64_t m = 0; m < s.between; ++m) {
      int64_t number = (part.before * s.rows + r) * s.between + m, at = number * s.columns;
      const float* by = x.by_column + (part.before * s.between + m) * s.columns;
      const Vec by_row = all(scale * x.by_row[number]);
      auto one = [&](int64_t d, auto take, auto put) {
        Vec way = take(x.g + at + d) * (by_row * take(by + d)), p = take(x.param + at + d);
        if constexpr (AVERAGES) {
          way = momentum * take(x.mu + at + d) + rest * way;
          put(x.new_mu + at + d, way);
        }
        put(x.new_param + at + d, p - rate * (way + decay * p));
      };
      across(s.columns, [&](int64_t d) { one(d, [](const float* p) { return load(p); }, [](float* p, Vec v) { store(p, v); }); },
             [&](int64_t d, int64_t n) {
               one(d, [n](const float* p) { return read_some(p, n); }, [n](float* p, Vec v) { write_some(p, v, n); });
             });
    }
  }
}

static void update(ffi::ThreadPool& pool, const Settings& s, const Tensor& x) {
  const int64_t width = s.between * s.columns, wanted = std::min(MOST, (s.rows * width + NUMBERS - 1) / NUMBERS);
  const int64_t rows = (s.rows + wanted - 1) / wanted, parts = (s.rows + rows - 1) / rows, count = s.before * parts;
  std::vector<float> columns(count * width);
  std::vector<double> totals(count);
  float* sums = columns.data();
  double* some = totals.data();
  auto part = [=](int64_t i) { return Part{i / parts, i % parts * rows, std::min(s.rows, (i % parts + 1) * rows)}; };
  auto total = [&] {
    double all = 0;
    for (double one : totals) all += one;
    return all / (s.before * s.rows * width);
  };
  in_turn(pool, count, [=](int64_t i) { some[i] = squares(s, x, part(i), sums + i * width); });
  float scale = s.relative ? std::max<double>(LEAST, std::sqrt(total())) : 1;
  roots(s, x, sums, parts);
  in_turn(pool, count, [=](int64_t i) { some[count - 1 - i] = size(s, x, part(count - 1 - i)); });  // the caches hold the last part
  scale *= s.factor / std::max(1.0, std::sqrt(total()) / s.threshold);
  in_turn(pool, count, [=](int64_t i) { (s.averages ? place<true> : place<false>)(s, x, part(i), scale); });
}

static ffi::Error run(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> g, ffi::Buffer<ffi::F32> param, ffi::Buffer<ffi::F32> row,
                           ffi::Buffer<ffi::F32> column, ffi::Buffer<ffi::F32> mu, ffi::Buffer<ffi::F32> scalars,
                           ffi::ResultBuffer<ffi::F32> new_param, ffi::ResultBuffer<ffi::F32> new_row,
                           ffi::ResultBuffer<ffi::F32> new_column, ffi::ResultBuffer<ffi::F32> new_mu, ffi::Span<const int64_t> shape,
                           float threshold, float decay, float momentum, bool relative) {
  const float* of = scalars.typed_data();
  if (scalars.element_count() != COUNT || shape.size() != AXES) return ffi::Error::InvalidArgument("expected 3 scalars and 4 axes");
  Settings s{of[B2], of[RATE], of[FACTOR], threshold, decay, momentum, relative, mu.element_count() > 0,
             shape[BEFORE], shape[ROWS], shape[BETWEEN], shape[COLUMNS]};
  const int64_t rows = s.before * s.rows * s.between, columns = s.before * s.between * s.columns, size = rows * s.columns;
  if (row.typed_data() != new_row->typed_data()) std::copy_n(row.typed_data(), row.element_count(), new_row->typed_data());
  if (column.typed_data() != new_column->typed_data()) std::copy_n(column.typed_data(), column.element_count(), new_column->typed_data());
  std::vector<float> by_row(rows), by_column(columns);
  for (int64_t n = 0; n < int64_t(g.element_count()) / size; ++n) {
    update(pool, s, Tensor{g.typed_data() + n * size, param.typed_data() + n * size, mu.typed_data() + n * size,
                           new_param->typed_data() + n * size, new_mu->typed_data() + n * size, new_row->typed_data() + n * rows,
                           new_column->typed_data() + n * columns, by_row.data(), by_column.data()});
  }
  return ffi::Error::Success();
}

}  // namespace factored

// Gradient, parameter, moments of rows and columns, averages of updates (none: size 0), scalars.
XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_adafactor, factored::run,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Attr<xla::ffi::Span<const int64_t>>("shape")
                                  .Attr<float>("threshold")
                                  .Attr<float>("decay")
                                  .Attr<float>("momentum")
                                  .Attr<bool>("relative"));
