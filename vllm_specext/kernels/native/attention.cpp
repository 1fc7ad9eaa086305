// Tree attention over pages: one pass over a request's keys for its rows and for all heads that share the keys.
//
// The rows of a request times the heads of a group are the rows of two products. Slots are taken in tiles, with the
// softmax's largest score and sum carried from tile to tile. Keys that lie transposed, as on vLLM's CPU pages, are read
// where they are, and so are values in float32; all others are copied to a tile in float32 first.
//
// Lengths come from the tensors alone, so that a call that was recorded follows a text as it grows.
#include <vector>

#include "vectors.h"

namespace {

constexpr int TILE = 256;        // slots
constexpr int STEP = 2 * LANES;  // slots or elements of a head that the products' inner loops take at once
constexpr int BLOCK = 96;        // rows of a tile's scores, so that they stay in the second-level cache
constexpr int FEW = 64;          // rows for which copying a tile does not pay
constexpr float NONE = -INFINITY;

struct Problem {
  Tensor query, keys, values, table, starts, prefixes, visible, out, sinks;  // one for each head, or none at all
  int64_t num_rows, widest, nodes, longest;
  float scale, soft_cap;
  int64_t window;
};

// scores[i][s] = query[i] . key[s] for ROWS rows and STEP slots; keys transposed.
template <int ROWS> void score(const float* query, int64_t size, const float* keys, int64_t next, float* scores) {
  Vector sums[ROWS][2] = {};
  for (int64_t d = 0; d < size; d++) {
    Vector first = load(keys + d * next), second = load(keys + d * next + LANES);
    for (int i = 0; i < ROWS; i++) {
      Vector factor = spread(query[i * size + d]);
      sums[i][0] += factor * first;
      sums[i][1] += factor * second;
    }
  }
  for (int i = 0; i < ROWS; i++) {
    store(scores + i * TILE, sums[i][0]);
    store(scores + i * TILE + LANES, sums[i][1]);
  }
}

// Values by slot: STEP elements of the head, from element `d` on, where they lie or copied side by side.
struct Scattered {
  const float* const* values;
  int64_t d;
  const float* operator()(int64_t s) const { return values[s] + d; }
};
struct Panel {
  const float* values;
  const float* operator()(int64_t s) const { return values + s * STEP; }
};

// sums[i] += weights[i][s] * value[s] for ROWS rows and STEP elements.
template <int ROWS, class Values> void weigh(const float* weights, Values values, int64_t count, float* sums, int64_t size) {
  Vector held[ROWS][2];
  for (int i = 0; i < ROWS; i++) held[i][0] = load(sums + i * size), held[i][1] = load(sums + i * size + LANES);
  for (int64_t s = 0; s < count; s++) {
    Vector first = load(values(s)), second = load(values(s) + LANES);
    for (int i = 0; i < ROWS; i++) {
      Vector weight = spread(weights[i * TILE + s]);
      held[i][0] += weight * first;
      held[i][1] += weight * second;
    }
  }
  for (int i = 0; i < ROWS; i++) store(sums + i * size, held[i][0]), store(sums + i * size + LANES, held[i][1]);
}

// Calls `work` with compile-time numbers of rows until all of `rows` are done.
template <class Work> void in_groups(int64_t rows, Work work) {
  int64_t i = 0;
  for (; i + 6 <= rows; i += 6) work(std::integral_constant<int, 6>(), i);
  for (; i + 2 <= rows; i += 2) work(std::integral_constant<int, 2>(), i);
  for (; i < rows; i++) work(std::integral_constant<int, 1>(), i);
}

bool is_finite(const float* value, int64_t padded) {
  Vector spoilt = {};
  for (int64_t d = 0; d < padded; d += LANES) spoilt += load(value + d) * spread(0.0f);  // NaN for infinity too
  return !any(spoilt != spoilt);
}

// What one row sees: the slots of the prefix from `first` on, and nodes by bits.
struct Sight {
  int64_t first;
  std::vector<uint8_t> node;
};

// A value that some rows see and that is not finite.
struct Spoilt {
  int64_t column;
  std::vector<float> value;
};

// One head of the cache for the rows `begin` to `end` of one request.
class Attention {
 public:
  Attention(const Problem& problem, int64_t request, int64_t head, int64_t begin, int64_t end)
      : p(problem), request(request), head(head), begin(begin), rows(end - begin) {
    groups = p.query.sizes[1] / p.keys.sizes[1];
    page_size = p.keys.sizes[2];
    size = p.keys.sizes[3], value_size = p.values.sizes[3];
    padded = (value_size + STEP - 1) / STEP * STEP;
    total = groups * rows;
    next_value = p.values.strides[2] * bytes_of(p.values.type);
    transposed = p.keys.type == FLOAT32 && p.keys.strides[2] == 1 && page_size % STEP == 0;
    // Lines of a page are a power of two apart, so that a first-level cache keeps few of them.
    direct_keys = transposed && total <= FEW;
    direct_values = p.values.type == FLOAT32 && p.values.strides[3] == 1 && padded == value_size && total <= FEW;
  }

  void run() {
    prefix = p.prefixes.integer(request);
    limit = std::min({prefix + p.nodes, p.longest, p.table.sizes[1] * page_size});
    look();
    start();
    for (int64_t tile = from / TILE * TILE; tile < to; tile += TILE) attend(tile);
    finish();
  }

 private:
  // Which slots are seen by anybody, and which not by all.
  void look() {
    sights.resize(rows);
    from = limit, to = 0, all_from = 0;
    by_any.assign(p.nodes, 0), by_all.assign(p.nodes, 1);
    for (int64_t row = 0; row < rows; row++) {
      Sight& sight = sights[row];
      sight.node.assign(p.nodes, 0);
      int64_t depth = -1;
      for (int64_t first = 0; first < p.nodes; first += 32) {
        uint32_t word = static_cast<uint32_t>(*p.visible.at<int32_t>(request, begin + row, first / 32));
        if (p.nodes - first < 32) word &= (1u << (p.nodes - first)) - 1;
        for (; word != 0; word &= word - 1, depth++) {
          int64_t node = first + __builtin_ctz(word);
          if (prefix + node >= limit) continue;
          sight.node[node] = by_any[node] = 1;
          from = std::min(from, prefix + node), to = std::max(to, prefix + node + 1);
        }
      }
      for (int64_t node = 0; node < p.nodes; node++) by_all[node] &= sight.node[node];
      sight.first = p.window ? std::max<int64_t>(0, prefix + depth - p.window + 1) : 0;
      if (sight.first < std::min(prefix, limit)) {
        from = std::min(from, sight.first);
        to = std::max(to, std::min(prefix, limit));
      }
      all_from = std::max(all_from, sight.first);
    }
  }

  bool seen_by_any(int64_t slot) const {
    return slot >= from && slot < to && (slot < prefix || by_any[slot - prefix]);
  }
  bool seen_by_all(int64_t slot) const { return slot < prefix ? slot >= all_from : by_all[slot - prefix]; }
  bool sees(const Sight& sight, int64_t slot) const {
    return slot < prefix ? slot >= sight.first : sight.node[slot - prefix];
  }

  void start() {
    queries.resize(total * size);
    sums.assign(total * padded, 0.0f);
    top.assign(total, NONE);
    weight.assign(total, p.sinks.sizes[0] ? 1.0f : 0.0f);
    scores.resize(BLOCK * TILE);
    nothing.assign(padded, 0.0f);
    int64_t bytes = bytes_of(p.query.type);
    for (int64_t i = 0; i < total; i++) {
      widen(row_of(p.query, i, bytes), p.query.type, 1, size, &queries[i * size]);
      for (int64_t d = 0; d < size; d++) queries[i * size + d] *= p.scale;
      // As if every row had seen a slot with this score and a value of zeros.
      if (p.sinks.sizes[0]) widen(sink_of(i), p.sinks.type, 1, 1, &top[i]);
    }
  }

  char* row_of(const Tensor& tensor, int64_t i, int64_t bytes) const {
    int64_t row = p.starts.integer(request) + begin + i % rows;
    return tensor.data + (row * tensor.strides[0] + (head * groups + i / rows) * tensor.strides[1]) * bytes;
  }

  const char* sink_of(int64_t i) const {
    return p.sinks.data + (head * groups + i / rows) * p.sinks.strides[0] * bytes_of(p.sinks.type);
  }

  char* slot_of(const Tensor& cache, int64_t slot) const {
    int64_t page = p.table.integer(request, slot / page_size);
    int64_t element = page * cache.strides[0] + head * cache.strides[1] + slot % page_size * cache.strides[2];
    return cache.data + element * bytes_of(cache.type);
  }

  void attend(int64_t tile) {
    int64_t low = std::max(from, tile) / STEP * STEP, high = std::min(to, tile + TILE);
    int64_t columns = (high - low + STEP - 1) / STEP * STEP;
    find_keys(low, high);
    find_values(low, high);
    for (int64_t block = 0; block < total; block += BLOCK) {
      int64_t count = std::min<int64_t>(BLOCK, total - block);
      for (int64_t c = 0; c < columns; c += STEP)
        if (key_at[c / STEP])
          in_groups(count, [&](auto number, int64_t i) {
            score<number()>(&queries[(block + i) * size], size, key_at[c / STEP], key_next, &scores[i * TILE + c]);
          });
      for (int64_t i = 0; i < count; i++) soften(block + i, &scores[i * TILE], low, high, columns);
      for (int64_t d = 0; d < padded; d += STEP)
        in_groups(count, [&](auto number, int64_t i) {
          float* to = &sums[(block + i) * padded + d];
          if (direct_values) weigh<number()>(&scores[i * TILE], Scattered{value_at, d}, high - low, to, padded);
          else weigh<number()>(&scores[i * TILE], Panel{&packed_values[d * TILE]}, high - low, to, padded);
        });
      for (const Spoilt& one : spoilt) add_spoilt(block, count, low, one);
    }
  }

  // Where each STEP of keys lies, transposed; nowhere if nobody sees one of them.
  void find_keys(int64_t low, int64_t high) {
    key_next = direct_keys ? p.keys.strides[3] : STEP;
    if (!direct_keys) packed_keys.resize(TILE * size);
    for (int64_t c = 0; low + c < high; c += STEP) {
      bool seen = false;
      for (int64_t slot = low + c; slot < std::min(low + c + STEP, high); slot++) seen |= seen_by_any(slot);
      key_at[c / STEP] = nullptr;
      if (!seen) continue;
      // All of the slots are in one page, which is there because somebody sees one of them.
      key_at[c / STEP] = direct_keys ? reinterpret_cast<const float*>(slot_of(p.keys, low + c)) : packed(low + c, high, c);
    }
  }

  const float* packed(int64_t first, int64_t high, int64_t column) {
    float* to = &packed_keys[column * size];
    if (transposed) {
      const float* own = reinterpret_cast<const float*>(slot_of(p.keys, first));
      for (int64_t d = 0; d < size; d++) memcpy(to + d * STEP, own + d * p.keys.strides[3], sizeof(float) * STEP);
      return to;
    }
    std::fill(to, to + STEP * size, 0.0f);
    for (int64_t s = 0; s < STEP && first + s < high; s++)
      if (seen_by_any(first + s)) widen(slot_of(p.keys, first + s), p.keys.type, p.keys.strides[3], size, to + s, STEP);
    return to;
  }

  // Where each value lies. What a row does not see has weight 0 for it, which does not cancel NaN and infinity: what
  // nobody sees is not read, and what some rows see and is not finite is added to them alone.
  void find_values(int64_t low, int64_t high) {
    spoilt.clear();
    value.assign(padded, 0.0f);
    if (!direct_values) packed_values.resize(TILE * padded);
    const char* own = nullptr;
    int64_t left = 0;  // slots to the end of the page
    for (int64_t slot = low; slot < high; slot++, left--) {
      bool seen = seen_by_any(slot);
      if (!seen) {
        left = 0;
      } else if (left > 0) {
        own += next_value;
      } else {
        own = slot_of(p.values, slot);
        left = page_size - slot % page_size;
      }
      if (seen && !direct_values) widen(own, p.values.type, p.values.strides[3], value_size, value.data());
      const float* found = !seen ? nothing.data() : direct_values ? reinterpret_cast<const float*>(own) : value.data();
      if (seen && !seen_by_all(slot) && !is_finite(found, padded)) {
        spoilt.push_back({slot - low, std::vector<float>(found, found + value_size)});
        found = nothing.data();
      }
      value_at[slot - low] = found;
      if (direct_values) continue;
      for (int64_t d = 0; d < padded; d += STEP)
        memcpy(&packed_values[d * TILE + (slot - low) * STEP], found + d, sizeof(float) * STEP);
    }
  }

  void add_spoilt(int64_t block, int64_t count, int64_t low, const Spoilt& one) {
    for (int64_t i = 0; i < count; i++) {
      if (!sees(sights[(block + i) % rows], low + one.column)) continue;
      for (int64_t d = 0; d < value_size; d++) sums[(block + i) * padded + d] += scores[i * TILE + one.column] * one.value[d];
    }
  }

  // From a row's scores to weights relative to the largest score so far.
  void soften(int64_t i, float* own, int64_t low, int64_t high, int64_t columns) {
    const Sight& sight = sights[i % rows];
    if (p.soft_cap != 0) cap(own, columns);
    hide(sight, own, low, high, columns);
    Vector most = spread(NONE);
    for (int64_t c = 0; c < columns; c += LANES) most = larger(load(own + c), most);
    float now = std::max(top[i], largest_of(most));
    float from_top = now == NONE ? 0.0f : now;  // nothing is seen yet, or NaN, which has to stay
    Vector added = {};
    for (int64_t c = 0; c < columns; c += LANES) {
      Vector weights = exponential(load(own + c) - spread(from_top));
      store(own + c, weights);
      added += weights;
    }
    float kept = top[i] == now ? 1.0f : exponential(spread(top[i] - from_top))[0];
    if (kept != 1.0f)
      for (int64_t d = 0; d < padded; d += LANES) store(&sums[i * padded + d], load(&sums[i * padded + d]) * spread(kept));
    weight[i] = weight[i] * kept + sum_of(added);
    top[i] = now;
  }

  void cap(float* own, int64_t columns) const {  // tanh x = 1 - 2 / (e^(2 x) + 1)
    Vector most = spread(p.soft_cap), one = spread(1.0f);
    for (int64_t c = 0; c < columns; c += LANES) {
      Vector twice = load(own + c) * spread(2.0f / p.soft_cap);
      store(own + c, most * (one - spread(2.0f) / (exponential(twice) + one)));
    }
  }

  void hide(const Sight& sight, float* own, int64_t low, int64_t high, int64_t columns) const {
    int64_t in_prefix = std::min(std::max(prefix - low, int64_t(0)), high - low);
    std::fill(own, own + std::min(std::max(sight.first - low, int64_t(0)), in_prefix), NONE);
    for (int64_t c = in_prefix; c < high - low; c++)
      if (!sight.node[low + c - prefix]) own[c] = NONE;
    std::fill(own + (high - low), own + columns, NONE);
  }

  void finish() {
    int64_t bytes = bytes_of(p.out.type);
    for (int64_t i = 0; i < total; i++) {
      float* own = &sums[i * padded];
      // A row that sees nothing gets zeros, as in torch.
      for (int64_t d = 0; d < value_size; d++) own[d] = weight[i] == 0 ? 0.0f : own[d] / weight[i];
      narrow(own, p.out.type, value_size, row_of(p.out, i, bytes));
    }
  }

  const Problem& p;
  int64_t request, head, begin, rows, groups, page_size, size, value_size, padded, total, next_value;
  bool transposed, direct_keys, direct_values;
  int64_t prefix, limit;
  int64_t from, to, all_from, key_next;  // slots that somebody sees lie between; of the prefix all see from all_from on
  const float* key_at[TILE / STEP + 1];
  const float* value_at[TILE];
  // A thread's own, so that their memory is kept from call to call.
  static thread_local std::vector<Sight> sights;
  static thread_local std::vector<uint8_t> by_any, by_all;
  static thread_local std::vector<float> queries, sums, top, weight, scores, nothing, value, packed_keys, packed_values;
  static thread_local std::vector<Spoilt> spoilt;
};

thread_local std::vector<Sight> Attention::sights;
thread_local std::vector<uint8_t> Attention::by_any, Attention::by_all;
thread_local std::vector<float> Attention::queries, Attention::sums, Attention::top, Attention::weight,
    Attention::scores, Attention::nothing, Attention::value, Attention::packed_keys, Attention::packed_values;
thread_local std::vector<Spoilt> Attention::spoilt;

}  // namespace

extern "C" int64_t tree_attention(const int64_t* words) {
  Arguments next(words);
  Problem p;
  for (Tensor* tensor : {&p.query, &p.keys, &p.values, &p.table, &p.starts, &p.prefixes, &p.visible, &p.out,
                         &p.sinks})
    *tensor = next.tensor();
  for (int64_t* number : {&p.num_rows, &p.widest, &p.nodes, &p.longest}) *number = next.integer();
  p.scale = next.number(), p.soft_cap = next.number(), p.window = next.integer();
  int64_t threads = next.integer(), requests = p.table.sizes[0], heads = p.keys.sizes[1];
  // With fewer heads than threads the rows are shared out as well.
  int64_t parts = std::max<int64_t>(1, threads / std::max<int64_t>(1, requests * heads));
  int64_t work = requests * heads * parts;
  (void)threads;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
  for (int64_t item = 0; item < work; item++) {
    int64_t request = item / (heads * parts), head = item / parts % heads, part = item % parts;
    int64_t start = p.starts.integer(request), end = std::min(p.starts.integer(request + 1), p.num_rows);
    int64_t rows = std::min({end - start, p.widest, p.visible.sizes[1]});
    if (rows <= 0) continue;
    int64_t each = (rows + parts - 1) / parts, begin = part * each;
    if (begin < rows) Attention(p, request, head, begin, std::min(begin + each, rows)).run();
  }
  return DONE;
}
