// The tokenizer's part of a GGUF file.
#pragma once

#include "text/tokenizer.h"

namespace penstock::gguf {
class Metadata;
}

namespace penstock::text {

// Throws penstock::Error naming the file and key if something is missing or of the wrong type.
TokenizerData load_tokenizer(const gguf::Metadata& metadata);

}  // namespace penstock::text
