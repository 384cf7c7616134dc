// Activation importance: for every weight matrix and input column the sum of the squared inputs, as
// llama.cpp's importance matrix files hold it (GGUF, general.type "imatrix"; docs/surgery.md).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::surgery {

struct Importance {
  int64_t n_in = 0;
  std::vector<float> sums;    // [n_mat][n_in]: sum over the tokens of x^2; n_mat is 1 or n_expert
  std::vector<float> counts;  // [n_mat]: tokens

  size_t n_mat() const noexcept { return counts.size(); }
};

struct Imatrix {
  std::map<std::string, Importance, std::less<>> tensors;  // by the weight's name
  std::vector<std::string> datasets;
  uint32_t n_chunks = 0;
  uint32_t chunk_tokens = 0;

  const Importance* find(std::string_view tensor) const noexcept;
  // Mean squares of the inputs of matrix `mat` (an expert; 0 of a plain matrix), n_in of them. An
  // expert that saw no token gets the mean over all tokens of the layer. False: nothing is known.
  static bool mean_squares(const Importance& importance, size_t mat, std::span<float> out) noexcept;
};

// Throws Error(Io); Error(Format) naming the tensor when the file is no importance matrix, has a
// tensor without its counts, or holds values that are negative or not finite.
Imatrix read_imatrix(const std::string& path);
void write_imatrix(const std::string& path, const Imatrix& imatrix);

}  // namespace penstock::surgery
