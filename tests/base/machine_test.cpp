#include "base/machine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/memory_account.h"

namespace penstock {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr uint64_t kMiB = uint64_t{1} << 20;

// A directory of made-up kernel files.
class Root {
 public:
  Root() {
    path_ = std::filesystem::path(PENSTOCK_BINARY_DIR) / "machine_test_files" /
            (std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) + "." +
             std::to_string(::getpid()));
    std::filesystem::create_directories(path_);
    write("/proc/meminfo",
          "MemTotal:       25165824 kB\nMemFree:         1000 kB\nMemAvailable:   20971520 kB\n");
  }
  ~Root() { std::filesystem::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = path_.string() + name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void v1(const std::string& group, uint64_t limit, uint64_t usage, const std::string& stat) const {
    write(group + "/memory.limit_in_bytes", std::to_string(limit) + "\n");
    write(group + "/memory.usage_in_bytes", std::to_string(usage) + "\n");
    write(group + "/memory.stat", stat);
  }
  void v2(const std::string& group, const std::string& max, const std::string& high,
          uint64_t current, const std::string& stat) const {
    write(group + "/memory.max", max + "\n");
    write(group + "/memory.high", high + "\n");
    write(group + "/memory.current", std::to_string(current) + "\n");
    write(group + "/memory.stat", stat);
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

constexpr const char* kV1Mounts =
    "30 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "34 30 0:31 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n"
    "35 30 0:32 / /sys/fs/cgroup/memory rw,relatime shared:10 - cgroup cgroup rw,memory\n"
    "36 30 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
constexpr uint64_t kV1None = 9223372036854771712u;

TEST(Memory, SwapIsThatOfTheGroupThatLimitsUsElseOfTheMachine) {
  const Root root;
  root.write("/proc/vmstat", "pswpin 7\npswpout 5\n");
  EXPECT_EQ(swapped_out(root.path()), 5u * 4096);
  root.write("/proc/self/mountinfo", "29 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  root.write("/proc/self/cgroup", "0::/app\n");
  root.v2("/sys/fs/cgroup/app", "max", "max", kGiB, "");
  root.write("/sys/fs/cgroup/app/memory.swap.current", "81920\n");
  EXPECT_EQ(swapped_out(root.path()), 5u * 4096);  // no limit binds it
  root.v2("/sys/fs/cgroup/app", "8589934592", "max", kGiB, "");
  EXPECT_EQ(swapped_out(root.path()), 81920u);
  root.write("/proc/self/mountinfo", kV1Mounts);
  root.write("/proc/self/cgroup", "4:memory:/a\n");
  root.v1("/sys/fs/cgroup/memory/a", kGiB, 0, "cache 1\nswap 12288\n");
  EXPECT_EQ(swapped_out(root.path()), 12288u);
}

TEST(MemoryAccount, PressureIsReadOrNothing) {
  const Root root;
  EXPECT_FALSE(host_memory_pressure(root.path()));
  root.write("/proc/pressure/memory",
             "some avg10=1.25 avg60=0.00 avg300=0.00 total=123\n"
             "full avg10=0.50 avg60=0.00 avg300=0.00 total=45\n");
  const auto host = host_memory_pressure(root.path());
  ASSERT_TRUE(host);
  EXPECT_EQ(host->some.avg10, 1.25);
  EXPECT_EQ(host->some.total_us, 123u);
  EXPECT_EQ(host->full.avg10, 0.5);
  EXPECT_EQ(host->full.total_us, 45u);
  root.write("/proc/pressure/memory", "some avg10=1.25 total=123\n");  // half of it is none
  EXPECT_FALSE(host_memory_pressure(root.path()));
  EXPECT_FALSE(cgroup_memory_pressure(root.path()));
  root.write("/proc/self/mountinfo", "29 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  root.write("/proc/self/cgroup", "0::/app\n");
  root.write("/sys/fs/cgroup/app/memory.pressure",
             "some avg10=2.00 total=7\nfull avg10=1.00 total=6\n");
  ASSERT_TRUE(cgroup_memory_pressure(root.path()));
  EXPECT_EQ(cgroup_memory_pressure(root.path())->full.total_us, 6u);
}

TEST(MemoryAccount, ThePeakIsThatOfOurOwnLimitedGroup) {
  const Root root;
  EXPECT_FALSE(cgroup_memory_peak(root.path()));
  root.write("/proc/self/mountinfo", "29 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  root.write("/proc/self/cgroup", "0::/app\n");
  root.v2("/sys/fs/cgroup/app", "max", "max", kGiB, "");
  root.write("/sys/fs/cgroup/app/memory.peak", "4096\n");
  EXPECT_FALSE(cgroup_memory_peak(root.path()));  // without a limit it is no one's
  root.v2("/sys/fs/cgroup/app", "8589934592", "max", kGiB, "");
  EXPECT_EQ(cgroup_memory_peak(root.path()), 4096u);
  root.write("/proc/self/mountinfo", kV1Mounts);
  root.write("/proc/self/cgroup", "4:memory:/a\n");
  root.v1("/sys/fs/cgroup/memory/a", kV1None, 0, "");
  root.write("/sys/fs/cgroup/memory/a/memory.max_usage_in_bytes", "8192\n");
  EXPECT_FALSE(cgroup_memory_peak(root.path()));
  root.v1("/sys/fs/cgroup/memory/a", kGiB, 0, "");
  EXPECT_EQ(cgroup_memory_peak(root.path()), 8192u);
}

TEST(Memory, WithoutAGroupTheHostCounts) {
  const Root root;
  const MemoryFacts facts = memory_facts(root.path());
  EXPECT_EQ(facts.total, 24 * kGiB);
  EXPECT_EQ(facts.available, 20 * kGiB);
  EXPECT_EQ(facts.cgroup_limit, 0u);
  EXPECT_FALSE(facts.cgroup_binds());
  EXPECT_EQ(facts.headroom(), 20 * kGiB);
  EXPECT_EQ(facts.source(), "host (MemAvailable)");
}

TEST(Memory, V1TakesTheTightestAncestor) {
  const Root root;
  root.write("/proc/self/mountinfo", kV1Mounts);
  root.write("/proc/self/cgroup", "5:cpu:/\n4:memory:/outer/inner\n0::/\n");
  root.v1("/sys/fs/cgroup/memory", kV1None, 5 * kGiB, "");
  root.v1("/sys/fs/cgroup/memory/outer", 3 * kGiB, 2 * kGiB,
          "inactive_file 1\ntotal_inactive_file 1073741824\ntotal_dirty 104857600\n"
          "total_writeback 4857600\n");
  root.v1("/sys/fs/cgroup/memory/outer/inner", 4 * kGiB, kGiB, "total_inactive_file 0\n");
  const MemoryFacts facts = memory_facts(root.path());
  EXPECT_EQ(facts.cgroup_limit, 3 * kGiB);
  EXPECT_EQ(facts.cgroup_headroom, 2 * kGiB - 104857600 - 4857600);
  EXPECT_EQ(facts.cgroup_path, "/sys/fs/cgroup/memory/outer");
  EXPECT_TRUE(facts.cgroup_binds());
  EXPECT_EQ(facts.headroom(), facts.cgroup_headroom);
  EXPECT_EQ(facts.source(), "cgroup /sys/fs/cgroup/memory/outer");
}

TEST(Memory, V1WithoutALimitDoesNotBind) {
  const Root root;
  root.write("/proc/self/mountinfo", kV1Mounts);
  root.write("/proc/self/cgroup", "4:memory:/a\n");
  root.v1("/sys/fs/cgroup/memory/a", kV1None, kGiB, "total_inactive_file 0\n");
  EXPECT_EQ(memory_facts(root.path()).cgroup_limit, 0u);
}

TEST(Memory, V2MaxAndHighOfEveryAncestorCount) {
  const Root root;
  root.write("/proc/self/mountinfo", "29 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  root.write("/proc/self/cgroup", "0::/user.slice/app.scope\n");
  root.v2("/sys/fs/cgroup/user.slice", "max", "8589934592", 7 * kGiB,
          "anon 5\ninactive_file 3221225472\nfile_dirty 1073741824\n");
  root.v2("/sys/fs/cgroup/user.slice/app.scope", "6442450944", "max", kGiB, "inactive_file 0\n");
  const MemoryFacts facts = memory_facts(root.path());
  EXPECT_EQ(facts.cgroup_limit, 8 * kGiB);
  EXPECT_EQ(facts.cgroup_headroom, 3 * kGiB);  // 8 - (7 - (3 - 1))
  EXPECT_EQ(facts.cgroup_path, "/sys/fs/cgroup/user.slice");
}

TEST(Memory, InAContainerTheMountsRootIsTheGroup) {
  const Root root;
  root.write("/proc/self/mountinfo",
             "29 1 0:26 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  root.write("/proc/self/cgroup", "4:memory:/docker/abc/work\n");
  root.v1("/sys/fs/cgroup/memory", 2 * kGiB, 3 * kGiB, "");  // more used than allowed
  const MemoryFacts facts = memory_facts(root.path());
  EXPECT_EQ(facts.cgroup_limit, 2 * kGiB);
  EXPECT_EQ(facts.cgroup_headroom, 0u);
  EXPECT_EQ(facts.cgroup_path, "/sys/fs/cgroup/memory");
}

TEST(Memory, ALooseGroupLeavesTheHostInCharge) {
  const Root root;
  root.write("/proc/self/mountinfo", kV1Mounts);
  root.write("/proc/self/cgroup", "4:memory:/a\n");
  root.v1("/sys/fs/cgroup/memory/a", 23 * kGiB, kGiB, "");
  const MemoryFacts facts = memory_facts(root.path());
  EXPECT_EQ(facts.cgroup_limit, 23 * kGiB);
  EXPECT_FALSE(facts.cgroup_binds());
  EXPECT_EQ(facts.headroom(), 20 * kGiB);
}

TEST(Memory, ThisMachineHasSome) {
  const MemoryFacts facts = memory_facts();
  EXPECT_GT(facts.total, 0u);
  EXPECT_LE(facts.headroom(), facts.total);
  EXPECT_GT(facts.headroom(), 0u);
}

TEST(Cpu, SiblingsShareACore) {
  const Root root;
  root.write("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU 9000\nflags\t: fpu\n");
  root.write("/sys/devices/system/cpu/online", "0-7\n");
  for (int cpu = 0; cpu < 8; ++cpu) {
    root.write(
        "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
        std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4) + "\n");
  }
  const CpuFacts facts = cpu_facts(root.path());
  EXPECT_EQ(facts.model, "Some CPU 9000");
  EXPECT_EQ(facts.logical, 8);
  EXPECT_EQ(facts.cores, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(facts.performance, facts.cores);
}

TEST(Cpu, HybridCpusAreToldApart) {
  const std::vector<int> fast = {0, 1};
  {
    const Root root;
    root.write("/sys/devices/system/cpu/online", "0-5\n");
    root.write("/sys/devices/cpu_core/cpus", "0-1\n");
    EXPECT_EQ(cpu_facts(root.path()).performance, fast);
  }
  for (const char* measure : {"cpu_capacity", "cpufreq/cpuinfo_max_freq"}) {
    const Root root;
    root.write("/sys/devices/system/cpu/online", "0-5\n");
    for (int cpu = 0; cpu < 6; ++cpu) {
      // A favoured core, an ordinary fast one, four slow ones.
      const int value = cpu == 0 ? 1024 : cpu == 1 ? 1000 : 600;
      root.write("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/" + measure,
                 std::to_string(value) + "\n");
    }
    EXPECT_EQ(cpu_facts(root.path()).cores.size(), 6u);
    EXPECT_EQ(cpu_facts(root.path()).performance, fast) << measure;
  }
}

TEST(Cpu, ThisMachineHasSome) {
  const CpuFacts facts = cpu_facts();
  EXPECT_GT(facts.logical, 0);
  EXPECT_FALSE(facts.performance.empty());
  EXPECT_LE(facts.performance.size(), facts.cores.size());
}

TEST(Footprint, ReadsTheRollup) {
  const Root root;
  root.write("/proc/self/smaps_rollup",
             "55-7f ---p 00000000 00:00 0 [rollup]\nRss: 9999 kB\nAnonymous:         2048 kB\n"
             "Swap: 7 kB\nSwapPss:             64 kB\nLocked:            512 kB\n");
  root.write("/proc/self/smaps",
             "7f00-7f10 r--p 00000000 08:01 123 /model\nSize: 4 kB\nLocked:  128 kB\n"
             "7f20-7f30 rw-p 00000000 00:00 0\nLocked:  384 kB\n");
  root.write("/proc/self/status", "VmHWM:\t   4096 kB\nRssAnon:\t    2000 kB\n");
  const Footprint facts = footprint(root.path());
  EXPECT_EQ(facts.anonymous, 2 * kMiB);
  EXPECT_EQ(facts.swap, 64u * 1024);
  EXPECT_EQ(facts.locked_file, 128u * 1024);
  EXPECT_EQ(facts.total(), 2 * kMiB + 192 * 1024);
  EXPECT_EQ(facts.peak_rss, 4 * kMiB);
  EXPECT_EQ(facts.rss_anon, 2000u * 1024);
}

TEST(Footprint, GrowsWithWhatIsTouched) {
  const uint64_t before = footprint().total();
  std::vector<char> block(32 * kMiB, 1);
  const uint64_t after = footprint().total();
  EXPECT_GE(after - before, 31 * kMiB);
  EXPECT_EQ(block[5 * kMiB], 1);
  EXPECT_GE(footprint().peak_rss, 32 * kMiB);
}

TEST(Storage, ReadBytes) {
  const Root root;
  root.write("/proc/self/io", "rchar: 5\nread_bytes: 1234567\nwrite_bytes: 8\n");
  EXPECT_EQ(storage_bytes_read(root.path()), 1234567u);
  EXPECT_EQ(storage_bytes_read(root.path() + "/nothing"), 0u);
}

TEST(Sizes, AreRead) {
  EXPECT_EQ(parse_size("4096"), 4096u);
  EXPECT_EQ(parse_size("0"), 0u);
  EXPECT_EQ(parse_size("8G"), 8 * kGiB);
  EXPECT_EQ(parse_size("8g"), 8 * kGiB);
  EXPECT_EQ(parse_size("512M"), 512 * kMiB);
  EXPECT_EQ(parse_size("1.5GiB"), 3 * kGiB / 2);
  EXPECT_EQ(parse_size("64KB"), 64u * 1024);
  EXPECT_EQ(parse_size("2T"), 2048 * kGiB);
  EXPECT_EQ(parse_size("17B"), 17u);
  for (const char* text :
       {"", "G", "-1G", "1X", "1GG", "1 G", "nan", "inf", "1e3", "1G ", "99999999T", "0x10"}) {
    EXPECT_THROW(parse_size(text), Error) << text;
  }
}

TEST(Sizes, AreWritten) {
  EXPECT_EQ(format_bytes(17), "17 B");
  EXPECT_EQ(format_bytes(3 * kGiB / 2), "1.50 GiB");
  EXPECT_EQ(format_bytes(512 * kMiB), "512 MiB");
  EXPECT_EQ(format_bytes(20 * kMiB + kMiB / 2), "20.5 MiB");
}

}  // namespace
}  // namespace penstock
