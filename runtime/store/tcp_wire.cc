#include "runtime/store/tcp_wire.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/base/whole_file.h"

namespace weft {
namespace {

std::string ReadPem(absl::string_view what, const std::string& path) {
  WEFT_REQUIRE(!path.empty(), "mutual TLS takes three files, and the ", what, " is not given");
  std::string text;
  try {
    text = ReadWholeFile(path);
  } catch (const Error& error) {
    ThrowInvalidArgument("the ", what, ": ", error.message());
  }
  WEFT_REQUIRE(absl::StrContains(text, "-----BEGIN"), "the ", what, " ", path, " is not a PEM file");
  return text;
}

struct PemTexts {
  explicit PemTexts(const StoreTls& tls)
      : ca(ReadPem("CA certificate", tls.ca_file)),
        certificate(ReadPem("certificate", tls.certificate_file)),
        key(ReadPem("private key", tls.key_file)) {}

  std::string ca;
  std::string certificate;
  std::string key;
};

}  // namespace

void RequireIdentity(absl::string_view what, absl::string_view identity) {
  WEFT_REQUIRE(static_cast<int64_t>(identity.size()) <= kMaxIdentityBytes, "a store's ", what,
               " has at most ", kMaxIdentityBytes, " bytes, got ", identity.size());
}

bool SameSecret(absl::string_view given, absl::string_view expected) {
  // As many steps as are given, whatever is expected; volatile keeps the compiler from leaving the loop
  // early.
  volatile unsigned char difference = given.size() == expected.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char other = expected.empty() ? '\0' : expected[i % expected.size()];
    difference = difference | static_cast<unsigned char>(given[i] ^ other);
  }
  return difference == 0;
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const std::optional<StoreTls>& tls) {
  if (!tls.has_value()) return grpc::InsecureServerCredentials();
  const PemTexts pem(*tls);
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = pem.ca;
  options.pem_key_cert_pairs = {{pem.key, pem.certificate}};
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const std::optional<StoreTls>& tls) {
  if (!tls.has_value()) return grpc::InsecureChannelCredentials();
  const PemTexts pem(*tls);
  return grpc::SslCredentials(
      {.pem_root_certs = pem.ca, .pem_private_key = pem.key, .pem_cert_chain = pem.certificate});
}

}  // namespace weft
