//! `a.?b` as `a[?'b']`: the interpreter takes a missing field for an error in the first, but not in the second.

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{CallExpr, EntryExpr, Expr, LiteralValue, operators};
use kube_cel::cel::common::types::CelString;

use super::super::MAX_DEPTH;

/// Rewrites every optional selection below `expression`.
pub(super) fn rewrite(expression: &mut IdedExpr, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    let below = |inner: &mut IdedExpr| rewrite(inner, depth + 1);
    match &mut expression.expr {
        Expr::Call(call) => {
            if call.func_name == operators::OPT_SELECT {
                call.func_name = operators::OPT_INDEX.to_owned();
            }
            call.target.iter_mut().for_each(|target| below(target));
            call.args.iter_mut().for_each(below);
        }
        Expr::Select(select) => {
            below(&mut select.operand);
            // What is selected from an optional is optional itself: `a.?b.c`.
            let optional =
                matches!(&select.operand.expr, Expr::Call(call) if call.func_name == operators::OPT_INDEX);
            if optional && !select.test {
                let field = Expr::Literal(LiteralValue::String(CelString::from(select.field.as_str())));
                let operand = std::mem::take(&mut *select.operand);
                expression.expr = Expr::Call(CallExpr {
                    func_name: operators::OPT_INDEX.to_owned(),
                    target: None,
                    args: vec![operand, IdedExpr { id: expression.id, expr: field }],
                });
            }
        }
        Expr::List(list) => list.elements.iter_mut().for_each(below),
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    below(&mut entry.key);
                    below(&mut entry.value);
                }
            }
        }
        Expr::Comprehension(comprehension) => {
            below(&mut comprehension.iter_range);
            below(&mut comprehension.accu_init);
            below(&mut comprehension.loop_cond);
            below(&mut comprehension.loop_step);
            below(&mut comprehension.result);
        }
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) => {}
    }
}
