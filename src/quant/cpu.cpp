#include "quant/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace penstock::quant {

#if defined(__x86_64__)
namespace {

bool has_avx2() noexcept {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return false;
  constexpr uint32_t kLeaf1 = bit_FMA | bit_OSXSAVE | bit_AVX | bit_F16C;
  if ((ecx & kLeaf1) != kLeaf1) return false;
  uint32_t xcr0 = 0, xcr0_high = 0;
  __asm__("xgetbv" : "=a"(xcr0), "=d"(xcr0_high) : "c"(0));
  if ((xcr0 & 6) != 6) return false;  // the operating system saves the XMM and YMM registers
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  constexpr uint32_t kLeaf7 = bit_AVX2 | bit_BMI2;
  return (ebx & kLeaf7) == kLeaf7;
}

}  // namespace
#endif

bool cpu_has(Isa isa) noexcept {
  switch (isa) {
    case Isa::Scalar:
      return true;
#if defined(__x86_64__)
    case Isa::Avx2: {
      static const bool avx2 = has_avx2();
      return avx2;
    }
#elif defined(__aarch64__)
    case Isa::Neon:
      return true;  // part of every AArch64 processor
#if defined(__linux__)
    case Isa::NeonDot:
      return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
#endif
    default:
      return false;
  }
}

}  // namespace penstock::quant
