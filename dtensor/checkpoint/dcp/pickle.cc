#include "dtensor/checkpoint/dcp/pickle.h"

#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// A pickle of more values is none that a checkpoint has. Items that an object takes from a tuple count as values: a pickle of
// 2 MB could call with one tuple so often that 80 GB were copied.
constexpr size_t kMostValues = size_t{1} << 26;

template <class... Parts>
[[noreturn]] void ThrowBroken(const std::string& path, const Parts&... parts) {
  Throw(absl::StatusCode::kDataLoss, "'", path, "' is not a whole pickle: ", parts...);
}

}  // namespace

const PickleValue* PickleValue::Find(absl::string_view key) const {
  if (kind != kDict) return nullptr;
  for (const auto& [name, value] : pairs) {
    if (name->kind == kText && name->text == key) return value;
  }
  return nullptr;
}

bool PickleValue::IsObjectOf(absl::string_view name) const {
  return kind == kObject && made_by != nullptr && made_by->kind == kGlobal && made_by->text == name;
}

// The stack, the marks and the memo of Python's pickle machine.
// Source: CPython's Lib/pickletools.py.
class PickleMachine {
 public:
  PickleMachine(Pickle& pickle, const std::string& path, absl::string_view bytes,
                const std::set<std::string>& classes)
      : pickle_(pickle), path_(path), bytes_(bytes), classes_(classes) {}

  void Run() {
    while (true) {
      const auto opcode = static_cast<unsigned char>(Take(1)[0]);
      if (opcode == '.') break;
      if (!Constant(opcode) && !Container(opcode) && !Memory(opcode) && !Object(opcode)) {
        Throw(absl::StatusCode::kUnimplemented, "'", path_, "': the pickle has the opcode ",
              absl::StrFormat("0x%02x", opcode), " at byte ", next_ - 1,
              ", which is not among those that are read");
      }
    }
    pickle_.value_ = Pop();
  }

 private:
  absl::string_view Take(uint64_t count) {
    if (count > bytes_.size() - next_) ThrowBroken(path_, "it ends at byte ", bytes_.size());
    const absl::string_view taken = bytes_.substr(next_, count);
    next_ += count;
    return taken;
  }
  uint64_t TakeNumber(int num_bytes) {
    uint64_t number = 0;
    const absl::string_view taken = Take(static_cast<uint64_t>(num_bytes));
    for (int i = num_bytes - 1; i >= 0; --i) number = number << 8 | static_cast<unsigned char>(taken[i]);
    return number;
  }
  std::string TakeLine() {
    const size_t end = bytes_.find('\n', next_);
    if (end == absl::string_view::npos) ThrowBroken(path_, "it ends within a line");
    const absl::string_view line = Take(end + 1 - next_);
    return std::string(line.substr(0, line.size() - 1));
  }

  void Count(size_t num_values) {
    if (num_values > kMostValues - num_values_)
      ThrowBroken(path_, "it has more than ", kMostValues, " values");
    num_values_ += num_values;
  }
  PickleValue* New(PickleValue::Kind kind) {
    Count(1);
    PickleValue& value = pickle_.values_.emplace_back();
    value.kind = kind;
    return &value;
  }
  PickleValue* Push(PickleValue* value) {
    stack_.push_back(value);
    return value;
  }
  PickleValue* Pop() {
    if (stack_.empty() || (!marks_.empty() && stack_.size() <= marks_.back())) {
      ThrowBroken(path_, "it takes more than it has at byte ", next_);
    }
    PickleValue* const value = stack_.back();
    stack_.pop_back();
    return value;
  }
  PickleValue* Top(PickleValue::Kind kind) {
    PickleValue* const value = Push(Pop());
    if (value->kind != kind) ThrowBroken(path_, "a value is of another kind than is meant at byte ", next_);
    return value;
  }
  std::vector<const PickleValue*> PopToMark() {
    if (marks_.empty()) ThrowBroken(path_, "it has no mark at byte ", next_);
    const std::vector<const PickleValue*> values(stack_.begin() + static_cast<int64_t>(marks_.back()),
                                                 stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return values;
  }
  void PushInt(int64_t number) { Push(New(PickleValue::kInt))->number = number; }
  // An integer of `count` bytes, in two's complement.
  void PushLong(uint64_t count) {
    if (count > 8) return PushText(PickleValue::kWideInt, count);
    uint64_t number = TakeNumber(static_cast<int>(count));
    if (count > 0 && count < 8 && number >> (8 * count - 1) != 0) number |= ~uint64_t{0} << 8 * count;
    PushInt(static_cast<int64_t>(number));
  }
  void PushText(PickleValue::Kind kind, uint64_t length) {
    Push(New(kind))->text = std::string(Take(length));
  }
  void PushGlobal(const std::string& module, const std::string& name) {
    const std::string text = absl::StrCat(module, " ", name);
    if (classes_.count(text) == 0) {
      Throw(absl::StatusCode::kUnimplemented, "'", path_, "': the pickle names '", text,
            "', which is not among the classes that are read");
    }
    Push(New(PickleValue::kGlobal))->text = text;
  }

  bool Constant(unsigned char opcode);
  bool Container(unsigned char opcode);
  bool Memory(unsigned char opcode);
  bool Object(unsigned char opcode);
  void PushTuple(size_t count);
  void SetItems(const std::vector<const PickleValue*>& items);

  Pickle& pickle_;
  const std::string& path_;
  const absl::string_view bytes_;
  const std::set<std::string>& classes_;
  size_t next_ = 0;
  size_t num_values_ = 0;  // made, or copied out of a tuple
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;
  std::map<uint64_t, PickleValue*> memo_;
};

bool PickleMachine::Constant(unsigned char opcode) {
  switch (opcode) {
    case 0x80:  // PROTO
      if (const uint64_t protocol = TakeNumber(1); protocol < 2 || protocol > 5) {
        ThrowBroken(path_, "protocol ", protocol, "; expected 2 to 5");
      }
      return true;
    case 0x95:  // FRAME
      Take(8);
      return true;
    case 'N':
      Push(New(PickleValue::kNone));
      return true;
    case 0x88:  // NEWTRUE
    case 0x89:  // NEWFALSE
      Push(New(PickleValue::kBool))->number = opcode == 0x88;
      return true;
    case 'J':
      PushInt(static_cast<int32_t>(TakeNumber(4)));
      return true;
    case 'K':
      PushInt(static_cast<int64_t>(TakeNumber(1)));
      return true;
    case 'M':
      PushInt(static_cast<int64_t>(TakeNumber(2)));
      return true;
    case 0x8a:  // LONG1
    case 0x8b:  // LONG4
      PushLong(TakeNumber(opcode == 0x8a ? 1 : 4));
      return true;
    case 'G': {  // BINFLOAT, big-endian
      const uint64_t bits = __builtin_bswap64(TakeNumber(8));
      std::memcpy(&Push(New(PickleValue::kFloat))->real, &bits, sizeof(bits));
      return true;
    }
    case 0x8c:  // SHORT_BINUNICODE
      PushText(PickleValue::kText, TakeNumber(1));
      return true;
    case 'X':  // BINUNICODE
      PushText(PickleValue::kText, TakeNumber(4));
      return true;
    case 'C':  // SHORT_BINBYTES
      PushText(PickleValue::kBytes, TakeNumber(1));
      return true;
    case 'B':  // BINBYTES
      PushText(PickleValue::kBytes, TakeNumber(4));
      return true;
    default:
      return false;
  }
}

void PickleMachine::PushTuple(size_t count) {
  std::vector<const PickleValue*> items(count);
  for (size_t i = count; i-- > 0;) items[i] = Pop();
  Push(New(PickleValue::kTuple))->items = std::move(items);
}

void PickleMachine::SetItems(const std::vector<const PickleValue*>& items) {
  PickleValue* const dict = Top(PickleValue::kDict);
  if (items.size() % 2 != 0) ThrowBroken(path_, "a key without a value at byte ", next_);
  for (size_t i = 0; i < items.size(); i += 2) dict->pairs.push_back({items[i], items[i + 1]});
}

bool PickleMachine::Container(unsigned char opcode) {
  switch (opcode) {
    case '(':
      marks_.push_back(stack_.size());
      return true;
    case ')':
      PushTuple(0);
      return true;
    case 0x85:  // TUPLE1 to TUPLE3
    case 0x86:
    case 0x87:
      PushTuple(opcode - 0x84u);
      return true;
    case 't': {
      std::vector<const PickleValue*> items = PopToMark();
      Push(New(PickleValue::kTuple))->items = std::move(items);
      return true;
    }
    case ']':
      Push(New(PickleValue::kList));
      return true;
    case '}':
      Push(New(PickleValue::kDict));
      return true;
    case 'a': {
      const PickleValue* const item = Pop();
      Top(PickleValue::kList)->items.push_back(item);
      return true;
    }
    case 'e': {
      const std::vector<const PickleValue*> items = PopToMark();
      PickleValue* const list = Top(PickleValue::kList);
      list->items.insert(list->items.end(), items.begin(), items.end());
      return true;
    }
    case 's': {
      const PickleValue* const value = Pop();
      const PickleValue* const key = Pop();
      SetItems({key, value});
      return true;
    }
    case 'u':
      SetItems(PopToMark());
      return true;
    default:
      return false;
  }
}

bool PickleMachine::Memory(unsigned char opcode) {
  switch (opcode) {
    case 0x94:  // MEMOIZE
      memo_[memo_.size()] = Push(Pop());
      return true;
    case 'q':  // BINPUT
    case 'r':  // LONG_BINPUT
      memo_[TakeNumber(opcode == 'q' ? 1 : 4)] = Push(Pop());
      return true;
    case 'h':    // BINGET
    case 'j': {  // LONG_BINGET
      const auto found = memo_.find(TakeNumber(opcode == 'h' ? 1 : 4));
      if (found == memo_.end()) ThrowBroken(path_, "it recalls what it has not kept at byte ", next_);
      Push(found->second);
      return true;
    }
    default:
      return false;
  }
}

bool PickleMachine::Object(unsigned char opcode) {
  switch (opcode) {
    case 'c': {  // GLOBAL
      const std::string module = TakeLine();
      PushGlobal(module, TakeLine());
      return true;
    }
    case 0x93: {  // STACK_GLOBAL
      const PickleValue* const name = Pop();
      const PickleValue* const module = Pop();
      if (name->kind != PickleValue::kText || module->kind != PickleValue::kText) {
        ThrowBroken(path_, "a class whose name is no text at byte ", next_);
      }
      PushGlobal(module->text, name->text);
      return true;
    }
    case 'R':     // REDUCE: a function's call, not made
    case 0x81: {  // NEWOBJ
      const PickleValue* const arguments = Pop();
      const PickleValue* const made_by = Pop();
      if (arguments->kind != PickleValue::kTuple || made_by->kind != PickleValue::kGlobal) {
        ThrowBroken(path_, "an object of no class, or whose arguments are no tuple, at byte ", next_);
      }
      PickleValue* const object = Push(New(PickleValue::kObject));
      object->made_by = made_by;
      Count(arguments->items.size());
      object->items = arguments->items;
      return true;
    }
    case 'b': {  // BUILD
      const PickleValue* const state = Pop();
      Top(PickleValue::kObject)->state = state;
      return true;
    }
    case 'Q': {  // BINPERSID
      const PickleValue* const id = Pop();
      Push(New(PickleValue::kPersistent))->state = id;
      return true;
    }
    default:
      return false;
  }
}

Pickle::Pickle(const std::string& path, absl::string_view bytes, const std::set<std::string>& classes) {
  PickleMachine(*this, path, bytes, classes).Run();
}

}  // namespace weft
