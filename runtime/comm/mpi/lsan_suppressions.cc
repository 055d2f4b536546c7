// What LeakSanitizer (--config=asan) must not report: OpenMPI, its PMIx and hwloc keep some of their own
// memory to the end of the process. Whatever Weft leaks is reported as ever.

#if defined(__SANITIZE_ADDRESS__)

// MPI_Finalize closes OpenMPI's plugins, and a leak of a library that is gone has no name to match, nor is
// what only the library's variables point to reachable any more. So libraries stay.
extern "C" int dlclose(void* handle);
extern "C" int dlclose(void* /*handle*/) { return 0; }

// By library; text that they print into memory (asprintf, which nothing of Weft calls) shows no caller but
// libc.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libmpi.so\n"
         "leak:libopen-pal.so\n"
         "leak:libopen-rte.so\n"
         "leak:libpmix.so\n"
         "leak:libhwloc.so\n"
         "leak:/openmpi/lib/\n"
         "leak:__vasprintf_internal\n";
}

// What was suppressed is no output of the program.
extern "C" const char* __lsan_default_options();
extern "C" const char* __lsan_default_options() { return "print_suppressions=0"; }

#endif
