#include "runtime/launch/world_meeting.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "runtime/base/error.h"
#include "runtime/base/error_text.h"
#include "runtime/base/host_name.h"
#include "runtime/base/random_id.h"
#include "runtime/store/tcp_address.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

constexpr char kSizeKey[] = "meet/size";
constexpr char kPlaceKey[] = "meet/place/";     // and a rank: who has come as that first
constexpr char kVerdictKey[] = "meet/verdict";  // kOk, or the error
constexpr char kOk[] = "ok";
// How often rank 0, which waits for ranks, looks whether one of them found a mistake.
constexpr milliseconds kLook{100};

// Ends the meeting for all, unless it has ended; throws how.
[[noreturn]] void EndBadly(Store& store, absl::StatusCode code, const std::string& why) {
  const std::string first = store.CompareSet(kVerdictKey, "", ErrorText(code, why));
  const std::optional<Error> told = ErrorFromText(first);
  Throw(code, told.has_value() ? told->message() : why);
}

void RequireOk(const std::string& verdict) {
  if (verdict == kOk) return;
  throw ErrorFromText(verdict).value_or(Error(absl::StatusCode::kAborted, verdict));
}

std::string SecondsOf(milliseconds time) {
  return absl::StrFormat("%.3g s", static_cast<double>(time.count()) / 1e3);
}

// Rank 0's part: returns when all have come.
void AwaitAll(Store& store, const WorldPlace& place, const std::vector<std::string>& keys) {
  const Clock::time_point deadline = Clock::now() + place.timeout;
  for (;;) {
    try {
      store.Wait(keys, kLook);
      return;
    } catch (const Error& error) {
      if (error.code() != absl::StatusCode::kDeadlineExceeded) throw;
    }
    if (const std::optional<std::string> verdict = store.TryGet(kVerdictKey)) RequireOk(*verdict);
    if (Clock::now() < deadline) continue;
    std::vector<int> missing;
    for (int rank = 0; rank < place.size; ++rank) {
      if (!store.Check({keys[rank]})) missing.push_back(rank);
    }
    if (missing.empty()) return;
    EndBadly(store, absl::StatusCode::kDeadlineExceeded,
             absl::StrCat("the world of ", place.size, " ranks at ", place.address, " is not complete after ",
                          SecondsOf(place.timeout), ": there is no rank ", absl::StrJoin(missing, ", ")));
  }
}

}  // namespace

std::string MeetingKey(int rank) { return absl::StrCat("meet/at/", rank); }

std::string MeetingRank::ToString() const { return absl::StrCat("process ", process, " on ", host); }

std::string MeetingRank::ToText() const { return Json::array({host, process, id}).dump(); }

MeetingRank MeetingRank::FromText(absl::string_view text) {
  try {
    const Json json = Json::parse(text.begin(), text.end());
    return {.host = json.at(0), .process = json.at(1), .id = json.at(2)};
  } catch (const Json::exception& error) {
    Throw(absl::StatusCode::kDataLoss, "no rank of a world: ", error.what());
  }
}

MeetingRank MeetingRank::Self() {
  return {.host = HostName(), .process = getpid(), .id = RandomId().substr(0, 16)};
}

bool MeetingFile::Make(const std::string& path) const {
  const std::string text = Json{{"rank0", rank0.ToText()}, {"port", port}, {"token", token}}.dump();
  // Whole at once, and never over another: link() refuses a name that is taken.
  const std::string draft = absl::StrCat(path, ".", rank0.id);
  const int file = open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool written =
      file >= 0 && write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  int reason = errno;
  if (file >= 0) close(file);
  const bool linked = written && link(draft.c_str(), path.c_str()) == 0;
  if (written && !linked) reason = errno;
  unlink(draft.c_str());
  if (linked) return true;
  if (written && reason == EEXIST) return false;
  Throw(absl::StatusCode::kAborted, "cannot make the file ", path,
        ", where a world shall meet: ", std::strerror(reason));
}

std::optional<MeetingFile> MeetingFile::Read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  try {
    const Json json = Json::parse(text);
    return MeetingFile{.rank0 = MeetingRank::FromText(json.at("rank0").get<std::string>()),
                       .port = json.at("port"),
                       .token = json.at("token")};
  } catch (const std::exception&) {
    ThrowInvalidArgument("the file ", path, " is not one in which ranks meet: remove it, or name another");
  }
}

std::string MeetingFile::Address() const {
  const bool here = MeetingRank::Self().host == rank0.host;
  return JoinHostAndPort(here ? "127.0.0.1" : rank0.host, port);
}

MeetingAddress ParsePlace(const WorldPlace& place) {
  WEFT_REQUIRE(place.size >= 1, "a world has 1 rank or more, got ", place.size);
  WEFT_REQUIRE(place.rank >= 0 && place.rank < place.size, "rank ", place.rank, " of a world of ", place.size,
               ": expected 0 to ", place.size - 1);
  WEFT_REQUIRE(place.generation >= 0, "a world's generation is 0 or more, got ", place.generation);
  WEFT_REQUIRE(place.timeout.count() > 0, "a world's timeout is above 0, got ", place.timeout.count(), " ms");
  absl::string_view rest = place.address;
  MeetingAddress address;
  if (absl::ConsumePrefix(&rest, "tcp://")) {
    const HostAndPort parsed = ParseAddress(rest);
    WEFT_REQUIRE(parsed.port > 0, "a world's address names a port above 0, got ", place.address);
    address.host_and_port = std::string(rest);
  } else if (absl::ConsumePrefix(&rest, "file://") && absl::StartsWith(rest, "/") && rest.size() > 1) {
    address.path = std::string(rest);
  } else {
    ThrowInvalidArgument("a world's address is '", place.address,
                         "', expected tcp://HOST:PORT or file:///PATH");
  }
  return address;
}

void ThrowTaken(const WorldPlace& place, const MeetingRank& first, const MeetingRank& self) {
  ThrowInvalidArgument("rank ", place.rank, " of the world at ", place.address, " is ", first.ToString(),
                       " already: ", self.ToString(), " needs a number of its own");
}

std::vector<MeetingRank> Meet(Store& store, const WorldPlace& place, const MeetingRank& self,
                              absl::FunctionRef<void()> has_place, absl::FunctionRef<void()> all_here) {
  const std::string size = store.CompareSet(kSizeKey, "", absl::StrCat(place.size));
  if (size != absl::StrCat(place.size)) {
    EndBadly(store, absl::StatusCode::kInvalidArgument,
             absl::StrCat("rank ", place.rank, " (", self.ToString(), ") was told of a world of ", place.size,
                          " ranks at ", place.address, ", others of one of ", size));
  }
  // Only now, so that a rank with another size never makes the world complete.
  const std::string first = store.CompareSet(absl::StrCat(kPlaceKey, place.rank), "", self.ToText());
  if (first != self.ToText()) ThrowTaken(place, MeetingRank::FromText(first), self);
  has_place();
  store.Set(MeetingKey(place.rank), self.ToText());
  std::vector<std::string> keys;
  keys.reserve(place.size);
  for (int rank = 0; rank < place.size; ++rank) keys.push_back(MeetingKey(rank));
  if (place.rank == 0) {
    AwaitAll(store, place, keys);
    all_here();
    RequireOk(store.CompareSet(kVerdictKey, "", kOk));
  } else {
    // Rank 0 gives up first, and says who is missing.
    RequireOk(store.Get(kVerdictKey, place.timeout + std::chrono::seconds(5)));
  }
  std::vector<MeetingRank> ranks;
  ranks.reserve(keys.size());
  for (const std::string& key : keys) ranks.push_back(MeetingRank::FromText(store.Get(key, place.timeout)));
  return ranks;
}

}  // namespace weft
