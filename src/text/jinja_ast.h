// The parsed template. Nodes are owned by the template's pools and point at each other; a pool
// frees them without recursion, however deep the tree.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace penstock::text::jinja {

// Names are numbered by the parser, so that a scope compares integers.
using NameId = uint32_t;

struct Expr;

struct CallArgs {
  std::vector<const Expr*> positional;
  std::vector<std::pair<std::string, const Expr*>> named;
  const Expr* star = nullptr;       // *args
  const Expr* star_star = nullptr;  // **kwargs
};

struct Expr {
  enum class Kind : uint8_t {
    Constant,
    Name,
    List,
    Tuple,
    Dict,       // children: key, value, key, value, ...
    Attribute,  // children[0].text
    Subscript,  // children[0][children[1]]
    Slice,      // children[0][children[1]:children[2]:children[3]], each bound may be null
    Call,
    Filter,  // children[0] is null for the filters of {% filter %} and {% set x | f %}
    Test,
    Not,
    Negative,
    Positive,
    Binary,   // text: + - * / // % **
    Compare,  // children[0] ops[0] children[1] ops[1] children[2] ...
    And,
    Or,
    Concat,
    Conditional,  // children: value, condition, other (may be null)
  };
  Kind kind;
  int line = 0;
  int depth = 1;
  bool negated = false;  // of a test
  NameId name = 0;
  std::string text;
  Value value;
  std::vector<const Expr*> children;
  std::vector<std::string> ops;
  CallArgs args;
};

struct Target {
  enum class Kind : uint8_t { Name, NamespaceAttribute, Tuple };
  Kind kind = Kind::Name;
  NameId name = 0;
  std::string attribute;
  std::vector<Target> items;
};

struct Stmt;
using Body = std::vector<const Stmt*>;

struct Stmt {
  enum class Kind : uint8_t {
    Data,
    Output,
    If,
    For,
    Set,
    SetBlock,
    Macro,
    CallBlock,
    FilterBlock,
    With,
    Block,  // {% generation %}: its body as it is
    Break,
    Continue,
  };
  struct Branch {
    const Expr* condition;
    Body body;
  };
  struct Parameter {
    NameId name;
    std::string text;
    const Expr* fallback;
  };
  Kind kind;
  int line = 0;
  Value data;
  const Expr* expr = nullptr;    // output, set value, iterable, call, filter chain
  const Expr* filter = nullptr;  // {% for … if filter %}
  bool recursive = false;
  Target target;
  std::vector<Branch> branches;  // of an if
  Body body;
  Body otherwise;
  NameId name = 0;  // of a macro
  std::string text;
  std::vector<Parameter> parameters;                        // of a macro or call block
  std::vector<std::pair<Target, const Expr*>> assignments;  // of a with
};

struct Ast {
  std::deque<Expr> exprs;
  std::deque<Stmt> stmts;
  std::vector<std::string> names;  // by NameId
  Body body;
};

}  // namespace penstock::text::jinja
