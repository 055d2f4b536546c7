// What ThreadSanitizer (--config=tsan) cannot see: Debian's libdnnl is not instrumented, so the locks of its
// primitive cache, which several ranks use at once, look like races.

#if defined(__SANITIZE_THREAD__)
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "race:libdnnl.so\n"; }
#endif
