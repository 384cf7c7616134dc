// What the thread sanitizer cannot see in the HTTP library. Debian's libcpp-httplib is a shared
// library built without instrumentation: the guard of a function-local static there is read by
// plain code, so that the second thread to use the static seems to race with the first, which
// filled it. Memory that the library itself touches is therefore left out; ours is all watched.
#if defined(__SANITIZE_THREAD__)
extern "C" [[gnu::visibility("default"), gnu::no_sanitize_thread]] const char*
__tsan_default_suppressions();
const char* __tsan_default_suppressions() { return "called_from_lib:libcpp-httplib.so\n"; }
#endif
