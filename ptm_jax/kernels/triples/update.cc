// An update of vectors of a graph in place, on the threads of a CPU.
//
// The definition is objectives/graph_vectors.py (TripleLoss with noise) with the scores of nn/heads/graph_vectors.py, under SGD,
// Adagrad or Adam. A part is a row of the batch: it computes the gradients of all that the row reads. Then every table row that was
// read is moved once. Sums have a fixed order, so results do not depend on the number of threads.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "../buffers.h"
#include "descent.h"
#include "scores.h"

// Memory of a thread, which stays for its next update.
static float* grown(std::vector<float>& memory, size_t size) {
  if (memory.size() < size) memory.resize(size);
  return memory.data();
}

// The fields of a row of the batch, and where its gradients go.
struct Given {
  const int32_t *ids, *noise, *sides;
  const bool* there;
  float *slopes, *slopes_noise, *slopes_links;
};

static void copy_row(float* to, const Table& table, int32_t id) {
  std::memcpy(to, table.value + size_t(id) * table.width, table.width * sizeof(float));
  std::memset(to + table.width, 0, (table.padded - table.width) * sizeof(float));
}

// TransH's soft constraint: a relation's vector lies in the plane of its normal w (Wang et al. 2014, Eq. 5).
static double constrain(const float* w, const float* link, float* slope_w, float* slope_link, const Settings& s, float* scratch) {
  std::memcpy(scratch, link, s.padded * sizeof(float));
  float inverse = to_unit(scratch, s.padded), cosine = dot(w, scratch, s.padded);
  float over = cosine * cosine - s.epsilon * s.epsilon;
  if (over <= 0) return 0;
  add(slope_w, scratch, 2 * cosine * s.soft * s.each, s.padded);
  float along = dot(w, scratch, s.padded), factor = 2 * cosine * s.soft * s.each * inverse;
  add(slope_link, w, factor, s.padded);
  if (inverse < 1e6f) add(slope_link, scratch, -factor * along, s.padded);
  return s.soft * over;
}

static void part(Row& row, const Given& g, const Table& token, const Table& links, Sums& out) {
  const Settings& s = row.s;
  int T = s.triples, K = s.noise, P = s.padded;
  std::vector<float> ends(2 * T, 1.0f), others(K, 1.0f), normals(T, 1.0f);  // 1 / length
  std::vector<float> squares(2 * T);
  for (int i = 0; i < T; ++i) {
    copy_row(row.h + size_t(i) * P, token, g.ids[3 * i]);
    copy_row(row.r + size_t(i) * P, token, g.ids[3 * i + 1]);
    copy_row(row.t + size_t(i) * P, token, g.ids[3 * i + 2]);
    for (int end = 0; end < 2; ++end) {
      float* x = (end ? row.t : row.h) + size_t(i) * P;
      if (s.soft) squares[2 * i + end] = dot(x, x, P);
      if (s.unit) ends[2 * i + end] = to_unit(x, P);
    }
    if (s.score != PLANES) continue;
    copy_row(row.w + size_t(i) * P, links, g.ids[3 * i + 1]);
    normals[i] = to_unit(row.w + size_t(i) * P, P);
  }
  for (int k = 0; k < K; ++k) {
    float* x = row.c + size_t(k) * P;
    copy_row(x, token, g.noise[k]);
    if (s.unit) others[k] = to_unit(x, P);
    row.norms[k] = dot(x, x, P);
  }
  for (int k = K; k < s.columns; ++k) row.norms[k] = 0;
  for (int d = 0; d < s.width; ++d) {
    float* to = row.turned + size_t(d) * s.columns;
    for (int k = 0; k < K; ++k) to[k] = row.c[size_t(k) * P + d];
    for (int k = K; k < s.columns; ++k) to[k] = 0;
  }
  std::memset(g.slopes, 0, size_t(3 * T) * P * sizeof(float)), std::memset(g.slopes_noise, 0, size_t(K) * P * sizeof(float));
  if (s.score == PLANES) std::memset(g.slopes_links, 0, size_t(T) * P * sizeof(float));
  row.slope_h = g.slopes, row.slope_r = g.slopes + P, row.slope_t = g.slopes + 2 * P, row.step = 3 * P;
  row.slope_c = g.slopes_noise, row.slope_w = g.slopes_links;
  row.heads = g.ids, row.tails = g.ids + 2, row.noise = g.noise;
  std::vector<int32_t> side(g.sides, g.sides + T);
  for (int turn = 0; turn < (s.both ? 2 : 1); ++turn) {
    if (s.both) std::fill(side.begin(), side.end(), turn);
    row.side(g.there, side.data(), out);
  }
  for (int i = 0; i < T; ++i) {
    if (!g.there[i]) continue;
    float *link = row.r + size_t(i) * P, *slope_link = row.slope_r + i * row.step;
    for (int end = 0; end < 2; ++end) {
      float *x = (end ? row.t : row.h) + size_t(i) * P, *slope = (end ? row.slope_t : row.slope_h) + i * row.step;
      float inverse = ends[2 * i + end], square = squares[2 * i + end];
      if (s.unit) through_unit(slope, x, inverse, P);
      if (s.soft && square > 1) {
        out.constraints += s.soft * (square - 1);
        add(slope, x, 2 * s.soft * s.each / inverse, P);
      }
    }
    if (s.decay) {
      out.constraints += s.decay * dot(link, link, P);
      add(slope_link, link, 2 * s.decay * s.each, P);
    }
    if (s.score != PLANES) continue;
    float *w = row.w + size_t(i) * P, *slope_w = row.slope_w + size_t(i) * P;
    if (s.soft) out.constraints += constrain(w, link, slope_w, slope_link, s, row.extra);
    through_unit(slope_w, w, normals[i], P);
  }
  if (!s.unit) return;
  for (int k = 0; k < K; ++k) through_unit(row.slope_c + size_t(k) * P, row.c + size_t(k) * P, others[k], P);
}

// numbers: the rates of the two tables, and the factors of Adam's bias correction. `whole`: all rows of `token` are updated, also
// those that no triple reads. sums: loss, sides of triples, ordered pairs' shares, constraints, triples, norm of the gradient.
static ffi::Error update(ffi::ThreadPool pool, Floats token0, Floats mu0, Floats nu0, Floats links0, Floats link_mu0, Floats link_nu0,
                         Words ids, Words segments, Words noise, Words sides, Floats numbers, Made token1, Made mu1, Made nu1,
                         Made links1, Made link_mu1, Made link_nu1, Made sums, int64_t score, int64_t kind, bool softmax, bool both,
                         bool unit, bool whole_table, float margin, float soft, float epsilon, float decay, float b1, float b2,
                         float eps) {
  int64_t rows = ids.dimensions()[0], T = ids.dimensions()[1] / 3, K = noise.dimensions()[1];
  int width = token0.dimensions()[1], padded = whole(width);
  Table token{taken(token0, token1), taken(mu0, mu1), taken(nu0, nu1), int64_t(token0.dimensions()[0]), width, padded};
  Table links{taken(links0, links1), taken(link_mu0, link_mu1), taken(link_nu0, link_nu1), int64_t(links0.dimensions()[0]), width, padded};
  std::unique_ptr<bool[]> there(new bool[rows * T]);
  int64_t count = 0;
  for (int64_t i = 0; i < rows * T; ++i) {
    const int32_t* segment = segments.typed_data() + 3 * i;
    count += there[i] = segment[0] > 0 && segment[1] > 0 && segment[2] > 0;
  }
  float each = count ? 1.0f / count : 0.0f;
  Settings s{int(score), softmax, both, unit, margin, soft, epsilon, decay, int(T), int(K), width, padded, whole(int(K)),
             both ? each / 2 : each, each};
  int64_t read = rows * (3 * T + K), linked = score == PLANES ? rows * T : 0;
  thread_local std::vector<float> memory;
  float* slopes = grown(memory, size_t(read + linked) * padded);
  float* slopes_links = slopes + size_t(read) * padded;
  std::vector<Sums> each_sums(rows);
  in_turn(pool, rows, [&](int64_t b) {
    thread_local std::vector<float> scratch;
    Row row(s, grown(scratch, Row::room(s)));
    Given given{ids.typed_data() + b * 3 * T, noise.typed_data() + b * K, sides.typed_data() + b * T, there.get() + b * T,
                slopes + size_t(b * 3 * T) * padded, slopes + size_t(rows * 3 * T + b * K) * padded,
                slopes_links + size_t(b * T) * padded};
    part(row, given, token, links, each_sums[b]);
  });
  std::vector<int32_t> list(read), list_links(linked);
  for (int64_t i = 0; i < rows * T; ++i) {
    const int32_t* triple = ids.typed_data() + 3 * i;
    for (int j = 0; j < 3; ++j) list[3 * i + j] = triple[j];
    if (linked) list_links[i] = triple[1];
  }
  for (int64_t k = 0; k < rows * K; ++k) list[rows * 3 * T + k] = noise.typed_data()[k];
  const float* n = numbers.typed_data();
  Rule rule{int(kind), n[0], b1, b2, eps, n[2], n[3]};
  double norm = descend(pool, token, Chains(list, token.size, whole_table), slopes, rule);
  rule.rate = n[1];
  if (linked) norm += descend(pool, links, Chains(list_links, links.size, whole_table), slopes_links, rule);
  Sums total;
  for (auto& one : each_sums) total.loss += one.loss, total.ordered += one.ordered, total.constraints += one.constraints;
  double found[6] = {total.loss, double(count * (both ? 2 : 1)), total.ordered, total.constraints, double(count), std::sqrt(norm)};
  for (int i = 0; i < 6; ++i) sums->typed_data()[i] = float(found[i]);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_triples, update,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Words>()
                                  .Arg<Words>()
                                  .Arg<Words>()
                                  .Arg<Words>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Attr<int64_t>("score")
                                  .Attr<int64_t>("kind")
                                  .Attr<bool>("softmax")
                                  .Attr<bool>("both")
                                  .Attr<bool>("unit")
                                  .Attr<bool>("whole_table")
                                  .Attr<float>("margin")
                                  .Attr<float>("soft")
                                  .Attr<float>("epsilon")
                                  .Attr<float>("decay")
                                  .Attr<float>("b1")
                                  .Attr<float>("b2")
                                  .Attr<float>("eps"));
