// Every expert of a geometry, once, in order, with a bounded number of reads ahead: for making and
// checking packs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/memory.h"
#include "experts/geometry.h"
#include "experts/io.h"
#include "experts/options.h"
#include "experts/read_queue.h"
#include "experts/record.h"

namespace penstock::experts {

class ExpertScan {
 public:
  struct Item {
    int index = 0;  // of the layer in the geometry
    int expert = 0;
    ExpertData data;      // of a pack: data.gate is the whole record
    int error = 0;        // an errno or kEndOfFile: the bytes are not there
    uint64_t offset = 0;  // where reading failed, and in which file
    std::string path;
    std::string error_text() const;
  };

  // Starts at the `first` expert, counted over all layers. Uses `io`, `depth` and `decorate` of the
  // options; holds `depth` experts in memory.
  ExpertScan(Geometry geometry, const StreamOptions& options, uint64_t first = 0);

  // Null at the end. Valid until the next call.
  const Item* next();

  const IoReport& report() const noexcept { return report_; }
  const StreamFiles& files() const noexcept { return *files_; }

 private:
  struct Place {
    int index = 0;
    int expert = 0;
    int parts_left = 0;
    int error = 0;
    uint32_t shard = 0;
    uint64_t offset = 0;
  };
  void issue(uint64_t position);
  void handle(std::span<const ReadDone> done);
  std::byte* memory(size_t place) const noexcept { return memory_.data() + place * slot_bytes_; }

  Geometry geometry_;
  std::shared_ptr<const StreamFiles> files_;
  IoReport report_;
  std::vector<RecordLayout> layouts_;
  uint64_t slot_bytes_ = 0;
  uint64_t end_ = 0;
  uint64_t head_;    // the next to be handed out
  uint64_t issued_;  // reads were made for those before
  int next_index_ = 0, next_expert_ = 0;
  std::vector<Place> places_;  // position p is at p % depth
  Item item_;
  Mapping memory_;
  ReadQueue queue_;  // last: its reads end before their memory goes
};

}  // namespace penstock::experts
