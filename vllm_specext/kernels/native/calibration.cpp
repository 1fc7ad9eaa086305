// How far a drafter's probabilities can be trusted, learned from a step.
#include <algorithm>
#include <cmath>
#include <vector>

#include "arguments.h"

extern "C" int64_t calibrate(const int64_t* words) {
  Arguments next(words);
  Tensor slots = next.tensor(), temperatures = next.tensor(), expected = next.tensor(), num_sampled = next.tensor();
  Tensor counts = next.tensor(), up_to = next.tensor(), logarithms = next.tensor(), sharpness = next.tensor();
  int64_t verified = next.integer(), kinds = logarithms.sizes[0];
  float patience = next.number(), least = next.number(), most = next.number();
  auto kind_of = [&](int64_t request) {
    float temperature = *temperatures.at<float>(slots.integer(request));
    int64_t kind = 0;
    while (kind < kinds - 1 && temperature > *up_to.at<float>(kind)) kind++;
    return kind;
  };
  std::vector<float> moved(kinds), trees(kinds);
  for (int64_t request = 0; request < verified; request++) {
    if (counts.sizes[0] && !*counts.at<uint8_t>(request)) continue;
    float own = *expected.at<float>(slots.integer(request));
    moved[kind_of(request)] += (num_sampled.integer(request) - 1 - own) / (1 + own);
    trees[kind_of(request)] += 1;
  }
  for (int64_t kind = 0; kind < kinds; kind++) {
    float* known = logarithms.at<float>(kind);
    *known = std::min(std::max(*known + moved[kind] / (patience + trees[kind]), least), most);
  }
  for (int64_t request = 0; request < slots.sizes[0]; request++)
    *sharpness.at<float>(request) = std::exp(*logarithms.at<float>(kind_of(request)));
  return DONE;
}
