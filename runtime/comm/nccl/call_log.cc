#include "runtime/comm/nccl/call_log.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/comm/group_text.h"

namespace weft {
namespace {

// Numbers, each followed by a blank; texts by their length and themselves.
void Put(std::string* out, int64_t value) { absl::StrAppend(out, value, " "); }
void Put(std::string* out, const std::string& text) {
  Put(out, static_cast<int64_t>(text.size()));
  out->append(text);
}
// How many, and then each; behind the second of several alike, how many more there are: an all-gather has one count per member,
// nearly all of them equal. Pairs of number and times would be longer where all differ.
template <class Numbers>
void PutAll(std::string* out, const Numbers& numbers) {
  Put(out, static_cast<int64_t>(numbers.size()));
  for (size_t i = 0; i < numbers.size(); ++i) {
    Put(out, numbers[i]);
    if (i == 0 || numbers[i] != numbers[i - 1]) continue;
    const size_t second = i;
    while (i + 1 < numbers.size() && numbers[i + 1] == numbers[i]) ++i;
    Put(out, static_cast<int64_t>(i - second));
  }
}

// How long the text of a call's counts is.
size_t LengthOfCounts(const CallLog::Call& call) {
  std::string text;
  PutAll(&text, call.descriptor.counts);
  PutAll(&text, call.receive_counts);
  return text.size();
}

// Of which of a row's things the text tells, and how many follow.
template <class T>
void PutPlace(std::string* out, const CallLog::Tail<T>& tail) {
  for (const uint64_t number : {tail.num, tail.num_done, tail.first, uint64_t{tail.there.size()}}) {
    Put(out, static_cast<int64_t>(number));
  }
}

class Reader {
 public:
  explicit Reader(absl::string_view text) : left_(text) {}

  int64_t Number() {
    const size_t blank = left_.find(' ');
    int64_t value = 0;
    WEFT_CHECK(blank != absl::string_view::npos && absl::SimpleAtoi(left_.substr(0, blank), &value),
               "not a call log");
    left_.remove_prefix(blank + 1);
    return value;
  }
  std::string Text() {
    const size_t size = static_cast<size_t>(Number());
    WEFT_CHECK(size <= left_.size(), "not a call log");
    const std::string text(left_.substr(0, size));
    left_.remove_prefix(size);
    return text;
  }
  template <class Numbers>
  Numbers All() {
    Numbers numbers;
    for (int64_t left = Number(); left > 0; --left) {
      const int64_t number = Number();
      const bool is_again = !numbers.empty() && numbers.back() == number;
      numbers.push_back(number);
      if (!is_again) continue;
      const int64_t more = Number();
      WEFT_CHECK(0 <= more && more < left, "not a call log");
      numbers.resize(numbers.size() + static_cast<size_t>(more), number);
      left -= more;
    }
    return numbers;
  }
  // Returns how many things follow.
  template <class T>
  int64_t Place(CallLog::Tail<T>* tail) {
    for (uint64_t* number : {&tail->num, &tail->num_done, &tail->first}) {
      *number = static_cast<uint64_t>(Number());
    }
    return Number();
  }

 private:
  absl::string_view left_;
};

}  // namespace

const CallLog::Tail<CallLog::Packet>& CallLog::Find(const Tails& tails, int peer) {
  static const Tail<Packet> kNone;
  const auto found = tails.find(peer);
  return found == tails.end() ? kNone : found->second;
}

CallLog::Call CallLog::Call::Short() const {
  if (is_short) return *this;
  const auto sum = [](const auto& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  };
  Call call = {.descriptor = descriptor, .receive_counts = {}, .is_short = true};
  call.descriptor.counts = {sum(descriptor.counts)};
  if (descriptor.kind == CollectiveKind::kAllToAll) {
    call.receive_counts = {sum(receive_counts)};
    return call;
  }
  for (const int64_t count : descriptor.counts) {
    for (const int shift : {0, 32}) call.descriptor.Mix(static_cast<uint32_t>(count >> shift));
  }
  return call;
}

void CallLog::AddBatch(uint64_t sequence, int rank, absl::Span<const Message> sends,
                       absl::Span<const Message> receives) {
  const auto add = [&](const Message& message, Tails* tails) {
    if (message.peer == rank) return;
    (*tails)[message.peer].Add({sequence, message.tensor.num_bytes(), message.tensor.TypeString()});
  };
  for (const Message& message : sends) add(message, &sent_);
  for (const Message& message : receives) add(message, &received_);
}

void CallLog::Done(CollectiveKind kind, uint64_t sequence) {
  if (kind != CollectiveKind::kSendRecv) return calls_.Done(sequence);
  for (Tails* tails : {&sent_, &received_}) {
    for (auto& [peer, tail] : *tails) {
      uint64_t done = tail.num_done;
      while (done < tail.num && tail.At(done + 1)->sequence <= sequence) ++done;
      tail.Done(done);
    }
  }
}

// Whatever is not the oldest under way is seldom what differs, and then the sums mostly tell so, too: not what leaves the total of
// an all-to-all as it is.
void CallLog::ShortenCounts(Tail<Call>* calls) {
  constexpr size_t kFew = 64;  // bytes: shorter counts stay
  size_t left = size_t{32} << 10;
  const auto shorten = [&](uint64_t number) {
    Call& call = calls->there[number - calls->first];
    const size_t length = LengthOfCounts(call);
    if (length <= kFew) return;
    if (length <= left) {
      left -= length;
    } else {
      call = call.Short();
    }
  };
  const uint64_t behind = std::min(calls->num_done + 2, calls->end());  // the oldest that has not ended
  for (uint64_t number = behind; number > calls->first; --number) shorten(number - 1);
  for (uint64_t number = behind; number < calls->end(); ++number) shorten(number);
}

CallLog CallLog::Told(size_t kept) const {
  constexpr uint64_t kUnderWay = 128;
  const auto told = [&](const auto& row, const auto& belong_together) {
    std::decay_t<decltype(row)> part = {.num = row.num, .num_done = row.num_done, .there = {}};
    part.first = std::max(row.first, row.num_done + 1 - std::min<uint64_t>(row.num_done, kept));
    const uint64_t oldest = row.num_done + 1;
    for (uint64_t number = part.first; number <= row.num; ++number) {
      if (number >= oldest + kUnderWay && !belong_together(*row.At(oldest), *row.At(number))) break;
      part.there.push_back(*row.At(number));
    }
    return part;
  };
  CallLog log;
  log.calls_ = told(calls_, [](const Call&, const Call&) { return false; });
  ShortenCounts(&log.calls_);
  const auto is_one_batch = [](const Packet& a, const Packet& b) { return a.sequence == b.sequence; };
  for (const auto& [peer, tail] : sent_) log.sent_[peer] = told(tail, is_one_batch);
  for (const auto& [peer, tail] : received_) log.received_[peer] = told(tail, is_one_batch);
  return log;
}

std::string CallLog::Encode() const {
  std::string out;
  PutPlace(&out, calls_);
  for (const Call& call : calls_.there) {
    Put(&out, static_cast<int64_t>(call.descriptor.kind));
    Put(&out, static_cast<int64_t>(call.descriptor.dtype));
    Put(&out, static_cast<int64_t>(call.descriptor.op));
    Put(&out, call.descriptor.root);
    Put(&out, static_cast<int64_t>(call.descriptor.num_parts));
    Put(&out, static_cast<int64_t>(call.descriptor.fingerprint));
    PutAll(&out, call.descriptor.counts);
    PutAll(&out, call.receive_counts);
    Put(&out, int64_t{call.is_short});
  }
  for (const Tails* tails : {&sent_, &received_}) {
    Put(&out, static_cast<int64_t>(tails->size()));
    for (const auto& [peer, tail] : *tails) {
      Put(&out, peer);
      PutPlace(&out, tail);
      for (const Packet& packet : tail.there) {
        Put(&out, static_cast<int64_t>(packet.sequence));
        Put(&out, packet.num_bytes);
        Put(&out, packet.type);
      }
    }
  }
  return out;
}

CallLog CallLog::Decode(absl::string_view text) {
  Reader reader(text);
  CallLog log;
  for (int64_t left = reader.Place(&log.calls_); left > 0; --left) {
    Call call;
    call.descriptor.kind = static_cast<CollectiveKind>(reader.Number());
    call.descriptor.dtype = static_cast<DType>(reader.Number());
    call.descriptor.op = static_cast<ReduceOp>(reader.Number());
    call.descriptor.root = static_cast<int>(reader.Number());
    call.descriptor.num_parts = static_cast<uint32_t>(reader.Number());
    call.descriptor.fingerprint = static_cast<uint32_t>(reader.Number());
    call.descriptor.counts = reader.All<CollectiveDescriptor::Counts>();
    call.receive_counts = reader.All<std::vector<int64_t>>();
    call.is_short = reader.Number() != 0;
    log.calls_.there.push_back(std::move(call));
  }
  for (Tails* tails : {&log.sent_, &log.received_}) {
    for (int64_t peers = reader.Number(); peers > 0; --peers) {
      Tail<Packet>& tail = (*tails)[static_cast<int>(reader.Number())];
      for (int64_t left = reader.Place(&tail); left > 0; --left) {
        Packet packet;
        packet.sequence = static_cast<uint64_t>(reader.Number());
        packet.num_bytes = reader.Number();
        packet.type = reader.Text();
        tail.there.push_back(std::move(packet));
      }
    }
  }
  return log;
}

namespace {

class Comparison {
 public:
  Comparison(const std::string& group, const std::vector<int>& world_ranks, const CallLogs& logs)
      : group_(group), ranks_(world_ranks), logs_(logs), size_(static_cast<int>(logs.size())) {}

  std::optional<std::string> Collectives() const {
    uint64_t first = std::numeric_limits<uint64_t>::max();
    uint64_t end = 0;
    for (const auto& log : logs_) {
      if (!log.has_value()) continue;
      first = std::min(first, log->calls().first);
      end = std::max(end, log->calls().end());
    }
    for (uint64_t number = first; number < end; ++number) {
      if (std::optional<std::string> text = Collective(number)) return text;
    }
    return std::nullopt;
  }

  std::optional<std::string> Messages() const {
    for (int from = 0; from < size_; ++from) {
      for (int to = 0; to < size_; ++to) {
        if (from == to || !logs_[from].has_value() || !logs_[to].has_value()) continue;
        const auto& sent = logs_[from]->sent_to(to);
        const auto& received = logs_[to]->received_from(from);
        const uint64_t end = std::min(sent.end(), received.end());
        for (uint64_t number = std::max(sent.first, received.first); number < end; ++number) {
          const CallLog::Packet* a = sent.At(number);
          const CallLog::Packet* b = received.At(number);
          if (a->num_bytes == b->num_bytes) continue;
          return absl::StrCat(OperationText(group_, CollectiveKind::kSendRecv, b->sequence), ": rank ",
                              ranks_[from], " sent ", a->num_bytes, " bytes to rank ", ranks_[to],
                              ", which expected ", b->num_bytes, " bytes (", b->type, ")");
        }
      }
    }
    return std::nullopt;
  }

 private:
  const CallLog::Call* At(int member, uint64_t number) const {
    return logs_[member].has_value() ? logs_[member]->calls().At(number) : nullptr;
  }

  static bool Agrees(const CallLog::Call& a, const CallLog::Call& b) {
    if (a.descriptor.kind != b.descriptor.kind || a.descriptor.dtype != b.descriptor.dtype) return false;
    if (a.descriptor.kind == CollectiveKind::kAllToAll) return true;
    return a.is_short == b.is_short ? a.descriptor == b.descriptor
                                    : a.Short().descriptor == b.Short().descriptor;
  }

  std::optional<std::string> Collective(uint64_t number) const {
    int known = -1;
    for (int member = 0; member < size_; ++member) {
      if (At(member, number) == nullptr) continue;
      if (known < 0) known = member;
      if (!Agrees(*At(known, number), *At(member, number))) return Text(number, known, member, "");
    }
    if (known < 0 || At(known, number)->descriptor.kind != CollectiveKind::kAllToAll) return std::nullopt;
    if (std::optional<std::string> text = Pair(number)) return text;
    return Sums(number);
  }

  // Both ends of an all-to-all between which counts differ, of those that are told whole.
  std::optional<std::string> Pair(uint64_t number) const {
    const auto is_whole = [&](int member) {
      return At(member, number) != nullptr && !At(member, number)->is_short;
    };
    for (int from = 0; from < size_; ++from) {
      for (int to = 0; to < size_; ++to) {
        if (!is_whole(from) || !is_whole(to)) continue;
        const int64_t sent = At(from, number)->descriptor.counts[to];
        const int64_t expected = At(to, number)->receive_counts[from];
        if (sent == expected) continue;
        return Text(number, from, to,
                    absl::StrCat(": rank ", ranks_[from], " sends ", sent, " elements to rank ", ranks_[to],
                                 ", which expects ", expected));
      }
    }
    return std::nullopt;
  }

  // Of an all-to-all that every member has told: what all send is what all expect.
  std::optional<std::string> Sums(uint64_t number) const {
    int64_t sent = 0;
    int64_t expected = 0;
    for (int member = 0; member < size_; ++member) {
      if (At(member, number) == nullptr) return std::nullopt;
      const CallLog::Call call = At(member, number)->Short();
      sent += call.descriptor.counts[0];
      expected += call.receive_counts[0];
    }
    if (sent == expected) return std::nullopt;
    return absl::StrCat(OperationText(group_, CollectiveKind::kAllToAll, number), ": the members send ", sent,
                        " elements in all, and expect ", expected);
  }

  std::string Text(uint64_t number, int a, int b, const std::string& what) const {
    const bool is_short = At(a, number)->is_short || At(b, number)->is_short;
    const auto called = [&](int member) {
      const CallLog::Call& call = *At(member, number);
      return absl::StrCat("rank ", ranks_[member], " called ",
                          is_short ? call.Short().descriptor.ToString() : call.descriptor.ToString());
    };
    return absl::StrCat(OperationText(group_, At(a, number)->descriptor.kind, number), ": ", called(a), ", ",
                        called(b), what, is_short ? " (sums of counts, and what they are as a number)" : "");
  }

  const std::string& group_;
  const std::vector<int>& ranks_;
  const CallLogs& logs_;
  const int size_;
};

}  // namespace

std::optional<std::string> FindDisagreement(const std::string& group, const std::vector<int>& world_ranks,
                                            const CallLogs& logs) {
  const Comparison comparison(group, world_ranks, logs);
  if (std::optional<std::string> text = comparison.Collectives()) return text;
  return comparison.Messages();
}

std::vector<int> FindMissing(int rank, CollectiveKind kind, uint64_t sequence, const CallLogs& logs) {
  // The number of the batch's last packet in a row of them; 0 if it has none there.
  const auto last_of_batch = [&](const CallLog::Tail<CallLog::Packet>& tail) {
    for (uint64_t number = tail.end() - 1; tail.At(number) != nullptr; --number) {
      if (tail.At(number)->sequence == sequence) return number;
    }
    return uint64_t{0};
  };
  std::vector<int> missing;
  for (int peer = 0; peer < static_cast<int>(logs.size()); ++peer) {
    if (peer == rank) continue;
    const std::optional<CallLog>& log = logs[peer];
    bool is_missing = false;
    if (kind == CollectiveKind::kSendRecv) {
      const uint64_t sent = last_of_batch(logs[rank]->sent_to(peer));
      const uint64_t received = last_of_batch(logs[rank]->received_from(peer));
      is_missing = log.has_value() ? log->received_from(rank).num < sent || log->sent_to(rank).num < received
                                   : sent + received > 0;
    } else {
      is_missing = !log.has_value() || log->calls().num < sequence;
    }
    if (is_missing) missing.push_back(peer);
  }
  return missing;
}

}  // namespace weft
