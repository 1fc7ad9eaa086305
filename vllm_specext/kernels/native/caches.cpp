// Rows of keys and values between slots of several layers' caches, as bytes: KV compaction and the gather of MoA. And
// where in a cache the slots of requests are.
#include <vector>

#include "arguments.h"

namespace {

struct Cache {  // a row of Caches.places; distances in bytes
  char* data;
  int64_t page, head, slot, element, pages, heads, page_size, width, bytes;

  explicit Cache(const int64_t* own)
      : data(reinterpret_cast<char*>(own[0])), page(own[1]), head(own[2]), slot(own[3]), element(own[4]), pages(own[5]),
        heads(own[6]), page_size(own[7]), width(own[8]), bytes(own[9]) {}

  bool has(int64_t at) const { return at >= 0 && at < pages * page_size; }
  char* row(int64_t at, int64_t of_head) const {
    return data + at / page_size * page + at % page_size * slot + of_head * head;
  }
};

template <class Word> void copy_words(const char* from, int64_t from_step, char* to, int64_t to_step, int64_t count) {
  for (int64_t i = 0; i < count; i++) memcpy(to + i * to_step, from + i * from_step, sizeof(Word));
}

// `count` elements of `bytes` each, in steps of so many bytes.
void copy(const char* from, int64_t from_step, char* to, int64_t to_step, int64_t count, int64_t bytes) {
  if (from_step == bytes && to_step == bytes) memcpy(to, from, count * bytes);
  else if (bytes == 1) copy_words<uint8_t>(from, from_step, to, to_step, count);
  else if (bytes == 2) copy_words<uint16_t>(from, from_step, to, to_step, count);
  else if (bytes == 4) copy_words<uint32_t>(from, from_step, to, to_step, count);
  else copy_words<uint64_t>(from, from_step, to, to_step, count);
}

struct Move {
  int64_t from, to;
};

// Reads all rows before it writes the first.
void move(const Cache& cache, const std::vector<Move>& moves) {
  static thread_local std::vector<char> held;
  int64_t row = cache.width * cache.bytes;
  held.resize(moves.size() * cache.heads * row);
  char* at = held.data();
  for (const Move& one : moves)
    for (int64_t head = 0; head < cache.heads; head++, at += row)
      copy(cache.row(one.from, head), cache.element, at, cache.bytes, cache.width, cache.bytes);
  at = held.data();
  for (const Move& one : moves)
    for (int64_t head = 0; head < cache.heads; head++, at += row)
      copy(at, cache.bytes, cache.row(one.to, head), cache.element, cache.width, cache.bytes);
}

}  // namespace

extern "C" int64_t compact(const int64_t* words) {
  Arguments next(words);
  Tensor places = next.tensor(), source = next.tensor(), destination = next.tensor();
  int64_t threads = next.integer(), count = places.sizes[0];
  std::vector<Move> moves;
  for (int64_t request = 0; request < source.sizes[0]; request++)
    for (int64_t i = 0; i < source.sizes[1]; i++) {
      Move one{source.integer(request, i), destination.integer(request, i)};
      if (one.from != one.to) moves.push_back(one);
    }
  if (moves.empty()) return DONE;
  for (int64_t c = 0; c < count; c++) {
    Cache cache(places.at<int64_t>(c));
    for (const Move& one : moves)
      if (!cache.has(one.from) || !cache.has(one.to)) return OUTSIDE;
  }
  (void)threads;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t c = 0; c < count; c++) move(Cache(places.at<int64_t>(c)), moves);
  return DONE;
}

// out [T, L, Hkv, 2, D], dense.
extern "C" int64_t gather(const int64_t* words) {
  Arguments next(words);
  Tensor places = next.tensor(), slots = next.tensor(), out = next.tensor();
  int64_t threads = next.integer(), count = places.sizes[0], tokens = slots.sizes[0];
  for (int64_t c = 0; c < count; c++) {
    Cache cache(places.at<int64_t>(c));
    for (int64_t t = 0; t < tokens; t++)
      if (slots.integer(t) >= cache.pages * cache.page_size) return OUTSIDE;
  }
  (void)threads;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t t = 0; t < tokens; t++) {
    int64_t slot = slots.integer(t);
    for (int64_t c = 0; c < count; c++) {
      Cache cache(places.at<int64_t>(c));
      int64_t row = cache.width * cache.bytes;
      char* to = out.data + ((t * (count / 2) + c / 2) * cache.heads * 2 + c % 2) * row;
      for (int64_t head = 0; head < cache.heads; head++, to += 2 * row) {
        if (slot < 0) memset(to, 0, row);
        else copy(cache.row(slot, head), cache.element, to, cache.bytes, cache.width, cache.bytes);
      }
    }
  }
  return DONE;
}

// For each request's slots those of the cache, by its pages; -1 for what is not written.
extern "C" int64_t kv_slots(const int64_t* words) {
  Arguments next(words);
  Tensor table = next.tensor(), slots = next.tensor(), written = next.tensor(), out = next.tensor();
  int64_t page_size = next.integer(), limit = next.integer(), rows = slots.sizes[1];
  for (int64_t request = 0; request < slots.sizes[0]; request++)
    for (int64_t row = 0; row < rows; row++) {
      int64_t slot = *slots.at<int64_t>(request, row);
      bool kept = *written.at<uint8_t>(request, row) && slot < limit;
      int64_t page = kept ? *table.at<int32_t>(request, slot / page_size) : 0;
      *out.at<int64_t>(request * rows + row) = kept ? page * page_size + slot % page_size : -1;
    }
  return DONE;
}
