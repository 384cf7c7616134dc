// A file system of a few kilobytes, for tests of what happens when there is no room.
#pragma once

#include <sys/mount.h>

#include <string>

namespace penstock::testing {

// A tmpfs mounted on a folder that exists, until the end of scope. Only root can: a test without
// it is skipped, visibly.
class SmallDisk {
 public:
  SmallDisk(std::string folder, const std::string& size)
      : folder_(std::move(folder)),
        mounted_(::mount("tmpfs", folder_.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0) {}
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const noexcept { return mounted_; }

 private:
  std::string folder_;
  bool mounted_;
};

}  // namespace penstock::testing
