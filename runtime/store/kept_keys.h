#ifndef WEFT_RUNTIME_STORE_KEPT_KEYS_H_
#define WEFT_RUNTIME_STORE_KEPT_KEYS_H_

#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/store/key_space.h"
#include "runtime/store/store_journal.h"
#include "runtime/store/tcp_store.pb.h"

namespace weft {

// Whose call it is. A client numbers its calls that change something, so that one that comes again over a new connection is
// known and not done twice.
struct StoreCall {
  std::string client = {};  // empty: nothing of the call is remembered
  uint64_t number = 0;
  uint64_t answered = 0;  // the client has the answers of all its calls below this
};

struct KeptKeysOptions {
  // Of keys, values and last wills. A journal that holds more is taken whole, and then nothing is added to it.
  int64_t max_bytes = std::numeric_limits<int64_t>::max();
  std::optional<StoreJournalOptions> journal = std::nullopt;
  // How long a client may be away before its last wills are set, after this process has begun with a journal that knows it.
  std::chrono::milliseconds grace = std::chrono::seconds(60);
  // The journal is written anew when it has more than this and four times what is alive.
  int64_t compact_bytes = int64_t{1} << 20;
};

// What the server of a TCP store keeps: keys and values, and of each client its last wills and the answers that it may ask
// for again. With a journal all of it outlives the process: what a call has changed is written there before anybody sees it.
//
//   a client's stream breaks while this process lives   it is dead: its last wills are set at once
//   this process dies and begins anew                   clients have `grace` to come back, then they are dead
//
// Cost:    with a journal a write per call that changes something; calls that change nothing write nothing, and are done
//          anew when they come again.
// Threads: any. Callbacks of the space run under this object's lock: they do not call it.
// Errors:  as in store.h; Aborted for a client that is dead or a call that was answered long ago; the journal's.
class KeptKeys {
 public:
  using Clock = std::chrono::steady_clock;

  explicit KeptKeys(const KeptKeysOptions& options);

  KeySpace& space() { return space_; }  // to read, and to wait
  const std::string& id() const { return id_; }
  bool restarts_in_place() const { return journal_ != nullptr; }
  // What the constructor has cut from the journal's end.
  int64_t num_cut_bytes() const { return journal_ == nullptr ? 0 : journal_->num_cut_bytes(); }

  void Set(const StoreCall& call, const std::string& key, const std::string& value);
  int64_t Add(const StoreCall& call, const std::string& key, int64_t amount);
  std::string CompareSet(const StoreCall& call, const std::string& key, const std::string& expected,
                         const std::string& desired);
  bool Delete(const StoreCall& call, const std::string& key);

  // A client has opened a stream; returns the stream's number, above 0.
  uint64_t Attach(const std::string& client);
  void LeaveWill(const std::string& client, const std::string& key, const std::string& value);
  void Farewell(const std::string& client);
  // That stream has broken; nothing if the client has a newer one.
  void Detach(const std::string& client, uint64_t stream) noexcept;

  // Sets the last wills of clients that have not come back in time, and forgets those long gone. To be called now and then.
  void Expire(Clock::time_point now) noexcept;

 private:
  struct Will {
    std::string key;
    std::string value;
  };
  struct Client {
    uint64_t stream = 0;  // 0: none is open
    Clock::time_point away_since = Clock::now();
    bool is_dead = false;
    bool said_farewell = false;
    bool owes_farewell = false;  // the journal, whose disk is full, has wills that are forgotten
    uint64_t answered = 0;
    std::map<uint64_t, KeySpace::Value> answers = {};
    std::vector<Will> wills = {};
  };

  // These want the lock held.
  const KeySpace::Value* Known(const StoreCall& call);
  void Write(const StoreCall& call, const std::string& key, const std::string& value);
  void Remember(const StoreCall& call, KeySpace::Value answer);
  void Keep(const tcp_store::JournalRecord& record);
  static tcp_store::JournalRecord RecordOf(const std::string& id, const Client& client);
  void SetWills(const std::string& id, Client& client);
  bool KeepForgotten(const std::string& client) noexcept;
  void Compact();

  void Replay(absl::string_view bytes);
  void ReplayClient(const tcp_store::KnownClient& known);
  static void SetCaller(const StoreCall& call, tcp_store::JournalRecord* record);

  const KeptKeysOptions options_;
  std::mutex mutex_;
  KeySpace space_;
  std::string id_;
  uint64_t num_streams_ = 0;
  std::unordered_map<std::string, Client> clients_;
  std::unique_ptr<StoreJournal> journal_;
  int64_t compacted_bytes_ = 0;  // of the journal when it was last written anew
};

}  // namespace weft

#endif  // WEFT_RUNTIME_STORE_KEPT_KEYS_H_
