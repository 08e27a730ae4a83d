// Classes of texts by the mean of the rows of their words and n-grams: several SGD updates in place.
//
// The definition is objectives/downstream.py (Classification) on encoders/bags.py under SGD, with the softmax or Huffman's
// tree. An update is of a few rows, which one thread makes faster than several.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../buffers.h"
#include "../vectors.h"
#include "adding.h"

// The rows of a text, in the order of places: those of words, then those of n-grams.
struct Bags {
  const int32_t *words, *ngrams;
  int length, each;  // words; n-grams of a word
  float* const* tables;

  template <class Found>
  void of(int row, Found found) const {
    for (int t = 0; t < length; ++t) {
      int32_t id = words[size_t(row) * length + t];
      if (id != INT32_MAX) found(4u * id + INPUT, tables[INPUT], id);
    }
    for (int t = 0; t < length * each; ++t) {
      int32_t id = ngrams[size_t(row) * length * each + t];
      if (id != INT32_MAX) found(4u * id + NGRAM, tables[NGRAM], id);
    }
  }
};

// The output matrix [width, classes]; its gradient by classes, or by the nodes of a tree [classes, ways].
struct Output {
  float* matrix;
  int width, classes, ways;  // ways: nodes on the way to a class, at most; 0: softmax
  const int32_t* paths;
  std::vector<float> scores, slopes;  // of classes; the gradients of scores; [classes]
  std::vector<float> change;          // [classes, width]
  std::vector<int> touched;
  std::vector<char> there;

  Output(float* matrix, int width, int classes, int ways, const int32_t* paths)
      : matrix(matrix), width(width), classes(classes), ways(ways), paths(paths), scores(classes), slopes(classes),
        change(size_t(classes) * width), there(classes) {}

  float score(const float* hidden, int n) const {
    float total = 0;
    for (int d = 0; d < width; ++d) total += hidden[d] * matrix[size_t(d) * classes + n];
    return total;
  }

  // Adds the gradient of a score to that of the mean and of the matrix.
  void back(const float* hidden, float slope, float weight, int n, float* mean) {
    if (!there[n]) there[n] = 1, touched.push_back(n);
    for (int d = 0; d < width; ++d) mean[d] += slope * matrix[size_t(d) * classes + n];
    for (int d = 0; d < width; ++d) change[size_t(n) * width + d] += weight * slope * hidden[d];
  }

  // Returns the loss of a text; `right`: whether its class has the highest score, of a softmax alone.
  float loss(const float* hidden, int label, float weight, float* mean, bool* right) {
    float loss = 0;
    for (int p = 0; p < ways; ++p) {
      int32_t way = paths[size_t(label) * ways + p];
      if (!way) break;
      int n = std::abs(way) - 1;
      float s = score(hidden, n), wrong = way > 0 ? -s : s;  // the loss is softplus(wrong)
      float e = std::exp(-std::fabs(wrong)), sigmoid = (wrong > 0 ? 1.0f : e) / (1.0f + e);
      loss += std::max(wrong, 0.0f) + std::log1p(e);
      back(hidden, way > 0 ? -sigmoid : sigmoid, weight, n, mean);
    }
    if (ways) return loss;
    for (int n = 0; n < classes; ++n) scores[n] = score(hidden, n);
    int best = std::max_element(scores.begin(), scores.end()) - scores.begin();
    float most = scores[best], total = 0;
    for (int n = 0; n < classes; ++n) total += slopes[n] = std::exp(scores[n] - most);
    *right = best == label;
    for (int n = 0; n < classes; ++n) back(hidden, slopes[n] / total - (n == label), weight, n, mean);
    return std::log(total) + most - scores[label];
  }

  // Takes the gradient from the matrix; returns the square of its norm.
  double add(float rate) {
    double norm = 0;
    for (int n : touched) {
      for (int d = 0; d < width; ++d) {
        float& slope = change[size_t(n) * width + d];
        norm += double(slope) * slope;
        matrix[size_t(d) * classes + n] -= rate * slope;
        slope = 0;
      }
      there[n] = 0;
    }
    touched.clear();
    return norm;
  }
};

// sums = [loss, weights, weights of right texts, gradient norms] of all updates. Update m has the rows m, m + updates, ...
static ffi::Error bags(Floats words0, Floats ngrams0, Floats matrix0, Words words, Words ngrams, Words labels, Floats weights,
                       Words paths, Floats rate, Made words1, Made ngrams1, Made matrix1, Made sums, int64_t updates) {
  int rows = words.dimensions()[0], length = words.dimensions()[1], width = words0.dimensions()[1], each = rows / updates;
  int padded = whole(width);
  float* tables[] = {taken(words0, words1), nullptr, taken(ngrams0, ngrams1), nullptr};
  Output output(taken(matrix0, matrix1), width, matrix0.dimensions()[1], paths.dimensions()[1], paths.typed_data());
  Bags bag{words.typed_data(), ngrams.typed_data(), length, int(ngrams.dimensions()[2]), tables};
  std::vector<std::vector<Entry>> entries(each);
  Numbers slopes(size_t(each) * padded);
  std::vector<float> hidden(width);
  Adder adder(width, padded);
  double loss = 0, weight = 0, rights = 0, norms = 0;
  auto row_of = [&](int n) { return n / each + (n % each) * int(updates); };  // the n-th in the order of updates
  auto soon = [&](uint32_t, float* table, int32_t id) {
    for (int d = 0; d < width + 15; d += 16) __builtin_prefetch(table + size_t(id) * width + std::min(d, width - 1), 1);
  };
  for (int m = 0; m < updates; ++m) {
    double there = 0;
    for (int r = 0; r < each; ++r) {
      int n = m * each + r, row = row_of(n);
      if (n + 1 < rows) bag.of(row_of(n + 1), soon);
      entries[r].clear();
      float share = weights.typed_data()[row], *mean = slopes.data + size_t(r) * padded;
      if (share <= 0) continue;
      std::fill(hidden.begin(), hidden.end(), 0.0f), std::fill(mean, mean + padded, 0.0f);
      bag.of(row, [&](uint32_t key, float* table, int32_t id) {
        for (int d = 0; d < width; ++d) hidden[d] += table[size_t(id) * width + d];
        entries[r].push_back({key, mean});
      });
      float part = 1.0f / std::max<size_t>(entries[r].size(), 1);
      for (float& x : hidden) x *= part;
      bool right = false;
      loss += double(share) * output.loss(hidden.data(), labels.typed_data()[row], share, mean, &right);
      for (int d = 0; d < width; ++d) mean[d] *= share * part;
      there += share, rights += right ? share : 0;
    }
    if (there <= 0) continue;
    float step = rate.typed_data()[0] / there;
    auto lists = [&](int r, int) -> const std::vector<Entry>& { return entries[r]; };
    double norm = adder.add(each, 0, lists, step, tables, nullptr) + output.add(step);
    weight += there, norms += std::sqrt(norm) / there;
  }
  float* found = sums->typed_data();
  found[0] = float(loss), found[1] = float(weight), found[2] = float(rights), found[3] = float(norms);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_words_bags, bags,
                              ffi::Ffi::Bind()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Words>()
                                  .Arg<Words>()
                                  .Arg<Words>()
                                  .Arg<Floats>()
                                  .Arg<Words>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Attr<int64_t>("updates"));
