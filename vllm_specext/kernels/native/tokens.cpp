// The most likely tokens of rows of logits and their log-probabilities, without sorting or writing a row.
#include <vector>

#include "vectors.h"

namespace {

constexpr int64_t CHUNK = 8 * LANES;  // logits whose largest is looked at before they are

bool comes_before(float a, float b) {  // NaN is the largest, as in torch
  return a > b || (a != a && b == b);
}

class Row {
 public:
  Row(const float* logits, int64_t count, float sharpness) : logits(logits), count(count), sharpness(sharpness) {}

  void best(int64_t k, int64_t* tokens, float* log_probs) {
    look();
    choose(k, tokens, log_probs);
    float total = log_of_sum();
    for (int64_t i = 0; i < k; i++) {
      float own = sharpness * (log_probs[i] - top) - total;
      log_probs[i] = own != own ? NONE : std::min(own, 0.0f);
    }
  }

 private:
  static constexpr float NONE = -INFINITY;

  // The largest logit of each chunk, and whether there is a NaN.
  void look() {
    int64_t whole = count / CHUNK;
    largest.resize(whole + 1);
    Integers spoilt = {};
    for (int64_t chunk = 0; chunk < whole; chunk++) {
      Vector most = load(logits + chunk * CHUNK);
      spoilt |= most != most;
      for (int64_t i = LANES; i < CHUNK; i += LANES) {
        Vector own = load(logits + chunk * CHUNK + i);
        spoilt |= own != own;
        most = larger(own, most);
      }
      largest[chunk] = largest_of(most);
    }
    has_nan = any(spoilt);
    largest[whole] = NONE;
    for (int64_t i = whole * CHUNK; i < count; i++) {
      has_nan |= logits[i] != logits[i];
      largest[whole] = std::max(largest[whole], logits[i]);
    }
    top = *std::max_element(largest.begin(), largest.end());
  }

  // The largest first, the earlier one where they tie.
  void choose(int64_t k, int64_t* tokens, float* values) const {
    int64_t held = 0;
    for (int64_t chunk = 0; chunk * CHUNK < count; chunk++) {
      if (held == k && !has_nan && !(largest[chunk] > values[k - 1])) continue;
      for (int64_t i = chunk * CHUNK; i < std::min(count, (chunk + 1) * CHUNK); i++) {
        if (held == k && !comes_before(logits[i], values[k - 1])) continue;
        int64_t place = held < k ? held++ : k - 1;
        for (; place > 0 && comes_before(logits[i], values[place - 1]); place--) {
          values[place] = values[place - 1];
          tokens[place] = tokens[place - 1];
        }
        values[place] = logits[i];
        tokens[place] = i;
      }
    }
  }

  // Of the sharpened logits less the largest. NaN where a logit is NaN or infinite, or all are -inf: then no token has a
  // probability.
  float log_of_sum() const {
    if (has_nan || std::isinf(top)) return NAN;
    Vector first = {}, second = {}, sharp = spread(sharpness);
    int64_t i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
      first += exponential(sharp * (load(logits + i) - spread(top)));
      second += exponential(sharp * (load(logits + i + LANES) - spread(top)));
    }
    float total = sum_of(first + second);
    for (; i < count; i++) total += std::exp(sharpness * (logits[i] - top));
    return std::log(total);
  }

  const float* logits;
  int64_t count;
  float sharpness;
  bool has_nan = false;
  float top = NONE;
  static thread_local std::vector<float> largest;
};

thread_local std::vector<float> Row::largest;

}  // namespace

extern "C" int64_t best_tokens(const int64_t* words) {
  Arguments next(words);
  Tensor logits = next.tensor(), sharpness = next.tensor(), tokens = next.tensor(), log_probs = next.tensor();
  int64_t threads = next.integer(), rows = logits.sizes[0], count = logits.sizes[1], k = tokens.sizes[1];
  (void)threads;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t row = 0; row < rows; row++) {
    static thread_local std::vector<float> wide;
    const char* own = logits.data + row * logits.strides[0] * bytes_of(logits.type);
    const float* values = reinterpret_cast<const float*>(own);
    if (logits.type != FLOAT32) {
      wide.resize(count);
      widen(own, logits.type, 1, count, wide.data());
      values = wide.data();
    }
    Row(values, count, *sharpness.at<float>(row)).best(k, tokens.at<int64_t>(row), log_probs.at<float>(row));
  }
  return DONE;
}
