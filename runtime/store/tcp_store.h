#ifndef WEFT_RUNTIME_STORE_TCP_STORE_H_
#define WEFT_RUNTIME_STORE_TCP_STORE_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "runtime/store/store.h"
#include "runtime/store/tcp_store_options.h"

namespace weft {

class TcpStoreConnection;

// A client of the store that a TcpStoreServer keeps, with a connection of its own. Get and Wait wait on the
// server. Once the connection has broken the store is gone for good, also if the server comes back: what it
// held is lost, and this client's last wills have been set.
//
// A store that restarts in place is different: then calls, those under way too, wait for it to come back, `grace` at most
// and whatever their own timeouts, and are done again unless it has done them: each has its effect once. Calls that change
// something wait as long for room while such a store, or its disk, is full.
//
// Cost:    a round trip a call: about 100 us on one machine.
// Threads: any. Not to be used in a child process by fork without exec.
// Errors:  as in store.h. The constructor tries until the server is up; after connect_timeout it throws
//          DeadlineExceeded with the last reason. Aborted from every call, those under way within a second,
//          when the server has ended; within keepalive's bound when its machine has vanished.
//          ResourceExhausted at once; from a store that restarts in place after `grace`.
class TcpStore final : public Store {
 public:
  // `address` is "host:port", "[::1]:port".
  explicit TcpStore(absl::string_view address, const TcpStoreOptions& options = {});
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;
  ~TcpStore() override;  // says farewell

  void Set(absl::string_view key, absl::string_view value) override;
  std::string Get(absl::string_view key, std::chrono::milliseconds timeout) override;
  std::optional<std::string> TryGet(absl::string_view key) override;
  int64_t Add(absl::string_view key, int64_t amount) override;
  void Wait(absl::Span<const std::string> keys, std::chrono::milliseconds timeout) override;
  bool Check(absl::Span<const std::string> keys) override;
  std::string CompareSet(absl::string_view key, absl::string_view expected,
                         absl::string_view desired) override;
  bool Delete(absl::string_view key) override;

  // A last will: the server sets `key` to `value` when this client's connection breaks without a farewell: at
  // once when the process has ended or was killed, within the server's keepalive bound when it was stopped or
  // its machine has vanished. A client may have several, one a key. Counts among the store's bytes.
  void SetOnDisconnect(absl::string_view key, absl::string_view value);

  // Forgets the last wills. Does not throw: if the server is gone there is nothing to forget.
  void Farewell() noexcept;

  // True if the server has ended, or does within `timeout`.
  bool AwaitServersEnd(std::chrono::milliseconds timeout) noexcept;

  const std::string& address() const;

 private:
  std::unique_ptr<TcpStoreConnection> connection_;
  std::atomic<bool> has_wills_ = false;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_STORE_TCP_STORE_H_
