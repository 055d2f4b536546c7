#ifndef WEFT_RUNTIME_STORE_TCP_WIRE_H_
#define WEFT_RUNTIME_STORE_TCP_WIRE_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "runtime/store/store.h"
#include "runtime/store/tcp_store_options.h"

namespace weft {

// What the two sides of a TCP store have in common besides its messages.

// Metadata of every call; "-bin" makes gRPC carry any bytes.
inline constexpr char kTokenHeader[] = "weft-token-bin";
inline constexpr char kRunHeader[] = "weft-run-bin";
inline constexpr char kClientHeader[] = "weft-client-bin";
// Of calls that change something: "NUMBER ANSWERED" (StoreCall), as text.
inline constexpr char kCallHeader[] = "weft-call-bin";

// Tokens and run ids: what fits into the metadata of a call.
inline constexpr int64_t kMaxIdentityBytes = 1024;

// A CompareSet of two of the largest values, or a Wait for that many bytes of keys.
inline constexpr int64_t kMaxMessageBytes = 2 * Store::kMaxValueBytes + 4 * Store::kMaxKeyBytes;

// Errors: InvalidArgument naming `what` for one above kMaxIdentityBytes.
void RequireIdentity(absl::string_view what, absl::string_view identity);

// Whether they are the same, in a time that does not tell where they differ.
bool SameSecret(absl::string_view given, absl::string_view expected);

// Insecure ones without `tls`.
// Errors: InvalidArgument for a file that cannot be read, naming it.
std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const std::optional<StoreTls>& tls);
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const std::optional<StoreTls>& tls);

}  // namespace weft

#endif  // WEFT_RUNTIME_STORE_TCP_WIRE_H_
