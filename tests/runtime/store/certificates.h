#ifndef WEFT_TESTS_RUNTIME_STORE_CERTIFICATES_H_
#define WEFT_TESTS_RUNTIME_STORE_CERTIFICATES_H_

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/store/tcp_store_options.h"

namespace weft {

// A certificate authority in a folder of its own, and what it signs, by the openssl program as in
// runtime/store/README.md.
class Certificates {
 public:
  Certificates() {
    std::string folder = "/tmp/weft_pem.XXXXXX";
    WEFT_CHECK(mkdtemp(folder.data()) != nullptr, "no folder");
    folder_ = folder;
    Run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 2 -subj '/CN=test "
        "authority' "
        "-keyout ca.key -out ca.pem");
  }
  Certificates(const Certificates&) = delete;
  Certificates& operator=(const Certificates&) = delete;
  ~Certificates() { std::filesystem::remove_all(folder_); }

  // A certificate of `name` for `hosts` ("IP:127.0.0.1,DNS:node0").
  StoreTls Sign(const std::string& name, const std::string& hosts) const {
    Run(absl::StrCat("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj '/CN=", name,
                     "' -addext 'subjectAltName=", hosts, "' -keyout ", name, ".key -out ", name, ".csr"));
    Run(absl::StrCat(
        "openssl x509 -req -days 2 -copy_extensions copy -CA ca.pem -CAkey ca.key -CAcreateserial "
        "-in ",
        name, ".csr -out ", name, ".pem"));
    return {.ca_file = absl::StrCat(folder_, "/ca.pem"),
            .certificate_file = absl::StrCat(folder_, "/", name, ".pem"),
            .key_file = absl::StrCat(folder_, "/", name, ".key")};
  }

 private:
  void Run(const std::string& command) const {
    const std::string line = absl::StrCat("cd ", folder_, " && ", command, " 2>log");
    WEFT_CHECK(std::system(line.c_str()) == 0, "failed: ", command);
  }

  std::string folder_;
};

}  // namespace weft

#endif  // WEFT_TESTS_RUNTIME_STORE_CERTIFICATES_H_
