// What a step does with the shape of trees: where their rows lie, which of them are accepted, and how they grow. All but
// the number of tokens that a tree may expect is comparing and copying, so that results are those of the torch bodies
// bit by bit.
#include <algorithm>
#include <cmath>
#include <vector>

#include "arguments.h"

// Positions by depth, lengths of the prefixes and who sees whom; one request after the other.
extern "C" int64_t lay_out(const int64_t* words) {
  Arguments next(words);
  Tensor slots = next.tensor(), starts = next.tensor(), seq_lens = next.tensor(), prefill_lens = next.tensor();
  Tensor depths = next.tensor(), ancestors = next.tensor(), causal = next.tensor();
  Tensor positions = next.tensor(), chain = next.tensor(), prefix_lens = next.tensor(), visible = next.tensor();
  int64_t last = next.integer(), nodes = causal.sizes[0], width = causal.sizes[1], rows = positions.sizes[0];
  for (int64_t row = 0; row < rows; row++) *chain.at<int64_t>(row) = *positions.at<int64_t>(row);
  for (int64_t request = 0; request < slots.sizes[0]; request++) {
    int64_t slot = slots.integer(request), start = starts.integer(request);
    int64_t count = starts.integer(request + 1) - start, prefix = seq_lens.integer(request) - count;
    bool has_draft = prefix >= prefill_lens.integer(slot);
    prefix_lens.store(prefix, request);
    for (int64_t node = 0; node < std::min({count, nodes, rows - start}); node++) {
      int64_t own = *chain.at<int64_t>(start + node);
      if (has_draft) own += depths.integer(slot, node) - node;
      *positions.at<int64_t>(start + node) = std::min(own, last);
    }
    for (int64_t node = 0; node < nodes; node++)
      for (int64_t word = 0; word < width; word++)
        *visible.at<int32_t>(request, node, word) =
            has_draft ? *ancestors.at<int32_t>(slot, node, word) : *causal.at<int32_t>(node, word);
  }
  return DONE;
}

extern "C" int64_t accepted_rows(const int64_t* words) {
  Arguments next(words);
  Tensor starts = next.tensor(), path = next.tensor(), accepted = next.tensor();
  Tensor source = next.tensor(), destination = next.tensor();
  for (int64_t request = 0; request < path.sizes[0]; request++) {
    int64_t start = starts.integer(request), count = accepted.integer(request);
    for (int64_t place = 0; place < path.sizes[1]; place++) {
      *source.at<int64_t>(request, place) = start + (place < count ? path.integer(request, place) : 0);
      *destination.at<int64_t>(request, place) = start + (place < count ? place : 0);
    }
  }
  return DONE;
}

extern "C" int64_t accept_chain(const int64_t* words) {
  Arguments next(words);
  Tensor drawn = next.tensor(), drafted = next.tensor(), bounds = next.tensor();
  Tensor emitted = next.tensor(), num_sampled = next.tensor();
  int64_t rows = drawn.sizes[0];
  for (int64_t request = 0; request < emitted.sizes[0]; request++) {
    int64_t start = bounds.integer(request), end = bounds.integer(request + 1), count = 1;
    bool goes_on = true;
    for (int64_t place = 0; place < emitted.sizes[1]; place++) {
      int64_t row = std::min(start + place, rows - 1);
      emitted.store(drawn.integer(row), request, place);
      if (place == 0) continue;
      goes_on = goes_on && start + place < end && drafted.integer(row) == drawn.integer(start + place - 1);
      count += goes_on;
    }
    num_sampled.store(count, request);
  }
  return DONE;
}

// Parents come before their children, so one pass over the nodes finds the path.
extern "C" int64_t accept_tree(const int64_t* words) {
  Arguments next(words);
  Tensor drawn = next.tensor(), drafted = next.tensor(), bounds = next.tensor(), parents = next.tensor();
  Tensor emitted = next.tensor(), num_sampled = next.tensor(), path = next.tensor();
  int64_t rows = drawn.sizes[0], levels = path.sizes[1] - 1;
  for (int64_t request = 0; request < parents.sizes[0]; request++) {
    int64_t start = std::min(bounds.integer(request), rows - 1);
    int64_t count = std::min({bounds.integer(request + 1) - start, parents.sizes[1], rows - start});
    for (int64_t place = 0; place <= levels; place++) *path.at<int64_t>(request, place) = 0;
    int64_t current = 0, accepted = 1;
    for (int64_t node = 1; node < count && accepted <= levels; node++) {
      if (parents.integer(request, node) != current) continue;
      if (drafted.integer(start + node) != drawn.integer(start + current)) continue;
      *path.at<int64_t>(request, accepted++) = current = node;
    }
    for (int64_t place = 0; place <= levels; place++)
      emitted.store(drawn.integer(start + *path.at<int64_t>(request, place)), request, place);
    num_sampled.store(accepted, request);
  }
  return DONE;
}

namespace {

// A key that sorts by score, largest first, then by place.
uint64_t key_of(float score, uint32_t place) {
  score += 0.0f;  // of -0 and 0 the earlier comes first
  uint32_t bits;
  memcpy(&bits, &score, sizeof bits);
  uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(~ascending) << 32 | place;
}

uint32_t bit_of(int64_t node, int64_t word) { return node / 32 == word ? 1u << (node % 32) : 0; }

}  // namespace

// One level of all requests: the candidates join the pool, the best become the frontier. `nodes` [3, R, k]: tokens,
// candidates, parents. Without scores before it, it is the first level, all of which is the frontier.
extern "C" int64_t expand(const int64_t* words) {
  Arguments next(words);
  Tensor tokens = next.tensor(), log_probs = next.tensor();
  Tensor scores_before = next.tensor(), candidates_before = next.tensor(), visible_before = next.tensor();
  Tensor pool_tokens = next.tensor(), pool_scores = next.tensor(), pool_parents = next.tensor();
  Tensor nodes = next.tensor(), scores = next.tensor(), visible = next.tensor();
  int64_t first = next.integer(), own_bit = next.integer();
  bool from_root = next.integer();
  int64_t k = scores.sizes[1], width = visible.sizes[2], count = from_root ? k : k * k;
  static thread_local std::vector<uint64_t> keys;
  keys.resize(count);
  for (int64_t request = 0; request < scores.sizes[0]; request++) {
    for (int64_t i = 0; i < count; i++) {
      int64_t parent = from_root ? 0 : i / k, place = from_root ? i : i % k, candidate = -1;
      float score = from_root ? *log_probs.at<float>(request, place) : *log_probs.at<float>(request, parent, place);
      if (!from_root) {
        score = *scores_before.at<float>(request, parent) + score;
        candidate = *candidates_before.at<int64_t>(request, parent);
      }
      *pool_tokens.at<int64_t>(request, first + i) =
          from_root ? *tokens.at<int64_t>(request, place) : *tokens.at<int64_t>(request, parent, place);
      *pool_scores.at<float>(request, first + i) = score;
      *pool_parents.at<int64_t>(request, first + i) = candidate;
      keys[i] = from_root ? i : key_of(score, i);
    }
    std::partial_sort(keys.begin(), keys.begin() + k, keys.end());
    for (int64_t rank = 0; rank < k; rank++) {
      int64_t chosen = static_cast<uint32_t>(keys[rank]), parent = from_root ? 0 : chosen / k;
      *nodes.at<int64_t>(0, request, rank) = *pool_tokens.at<int64_t>(request, first + chosen);
      *nodes.at<int64_t>(1, request, rank) = first + chosen;
      *nodes.at<int64_t>(2, request, rank) = parent;
      *scores.at<float>(request, rank) = *pool_scores.at<float>(request, first + chosen);
      for (int64_t word = 0; word < width; word++) {
        uint32_t seen = bit_of(own_bit + rank, word);
        if (!from_root) seen |= static_cast<uint32_t>(*visible_before.at<int32_t>(request, parent, word));
        *visible.at<int32_t>(request, rank, word) = static_cast<int32_t>(seen);
      }
    }
  }
  return DONE;
}

// The tree of the best candidates of the first `size` of the pool, whose first `k` are children of the root.
extern "C" int64_t best_tree(const int64_t* words) {
  Arguments next(words);
  Tensor pool_tokens = next.tensor(), pool_scores = next.tensor(), pool_parents = next.tensor();
  Tensor tokens = next.tensor(), parents = next.tensor(), depths = next.tensor(), ancestors = next.tensor();
  Tensor expected = next.tensor();
  int64_t size = next.integer(), k = next.integer(), levels = next.integer();
  int64_t count = tokens.sizes[1], width = ancestors.sizes[2];
  static thread_local std::vector<uint64_t> keys;
  static thread_local std::vector<int64_t> node_of;
  keys.resize(size), node_of.resize(size);
  for (int64_t request = 0; request < tokens.sizes[0]; request++) {
    for (int64_t i = 0; i < size; i++) keys[i] = key_of(*pool_scores.at<float>(request, i), i);
    std::sort(keys.begin(), keys.end());
    for (int64_t rank = 0; rank < size; rank++) node_of[static_cast<uint32_t>(keys[rank])] = rank + 1;
    *parents.at<int64_t>(request, 0) = *depths.at<int64_t>(request, 0) = 0;
    float* accepted = expected.at<float>(request);
    *accepted = 0;
    for (int64_t node = 1; node <= count; node++) {
      int64_t candidate = static_cast<uint32_t>(keys[node - 1]), parent = *pool_parents.at<int64_t>(request, candidate);
      *tokens.at<int64_t>(request, node - 1) = *pool_tokens.at<int64_t>(request, candidate);
      *accepted += std::exp(*pool_scores.at<float>(request, candidate));
      *parents.at<int64_t>(request, node) = parent < 0 ? 0 : node_of[parent];
      *depths.at<int64_t>(request, node) = candidate < k ? 1 : 2 + (candidate - k) / (k * k);
    }
    for (int64_t node = 0; node <= count; node++) {
      for (int64_t word = 0; word < width; word++) *ancestors.at<int32_t>(request, node, word) = 0;
      int64_t ancestor = node;
      for (int64_t level = 0; level <= levels && ancestor <= count; level++) {
        *ancestors.at<int32_t>(request, node, ancestor / 32) |= static_cast<int32_t>(bit_of(ancestor, ancestor / 32));
        ancestor = *parents.at<int64_t>(request, ancestor);
      }
    }
  }
  return DONE;
}
