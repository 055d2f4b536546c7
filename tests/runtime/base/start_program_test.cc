// Shells as children: what they find, and why a program does not start.

#include "runtime/base/start_program.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "runtime/base/error.h"
#include "tests/message_of.h"

namespace weft {
namespace {

// What the shell writes to stdout, and on the next line the code that it ends with.
std::string Says(const std::string& script, const std::vector<std::string>& environment, ProgramStart start) {
  int out[2];
  WEFT_CHECK(pipe(out) == 0, "no pipe");
  start.out = out[1];
  const pid_t pid = StartProgram({"/bin/sh", "-c", script}, environment, start);
  close(out[1]);
  std::string said;
  char bytes[4096];
  for (ssize_t count = 0; (count = read(out[0], bytes, sizeof(bytes))) > 0;) said.append(bytes, count);
  close(out[0]);
  int status = 0;
  WEFT_CHECK(waitpid(pid, &status, 0) == pid, "no child");
  return said + std::to_string(WEXITSTATUS(status));
}

TEST(StartProgramTest, FindsItsArgumentsAndVariables) {
  EXPECT_EQ(Says("echo $A; exit 7", {"A=a b", "PATH=/bin"}, {}), "a b\n7");
  EXPECT_EQ(Says("echo ${HOME-none}", {}, {}), "none\n0");
}

TEST(StartProgramTest, LeadsAGroupOrNot) {
  const std::string is_leader = "read -r _ _ _ _ group _ < /proc/$$/stat; [ $group = $$ ]";
  EXPECT_EQ(Says(is_leader, {}, {.leads_group = true}), "0");
  EXPECT_EQ(Says(is_leader, {}, {}), "1");
}

TEST(StartProgramTest, HasNoSignalBlockedAndIgnoresThoseOfItsParentOrNone) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  const auto action = signal(SIGTTOU, SIG_IGN);
  const std::string masks =
      "while read -r name mask; do case $name in SigBlk:|SigIgn:) echo $((0x$mask >> 21 & 1)) $((0x$mask >> "
      "14 & 1));; "
      "esac; done < /proc/$$/status";
  EXPECT_EQ(Says(masks, {}, {.default_signals = true}), "0 0\n0 0\n0");
  EXPECT_EQ(Says(masks, {}, {}), "0 0\n1 0\n0");
  signal(SIGTTOU, action);
  sigprocmask(SIG_SETMASK, &before, nullptr);
}

TEST(StartProgramTest, MayHaveNothingToRead) {
  EXPECT_EQ(Says("read -r line || echo nothing", {}, {.empty_input = true}), "nothing\n0");
}

TEST(StartProgramTest, WhyOneDoesNotStart) {
  EXPECT_EQ(MessageOf([] { StartProgram({"/no/such/program"}, {}); }),
            "cannot start /no/such/program: there is no such program");
  EXPECT_EQ(MessageOf([] { StartProgram({"/etc/passwd"}, {}); }),
            "cannot start /etc/passwd: it may not be executed (chmod +x, or name its interpreter)");
  EXPECT_EQ(InvalidArgumentMessage([] { StartProgram({}, {}); }), "no program to start");
}

}  // namespace
}  // namespace weft
