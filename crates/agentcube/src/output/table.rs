//! Aligned columns, three spaces apart, as `kubectl` has them. Control characters in cells are made visible, so that
//! no object can write to somebody's terminal.

/// Rows of cells; the first may be a header.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without a header.
    pub(crate) fn plain() -> Self {
        Self::default()
    }

    pub(crate) fn with_header<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        let mut table = Self::default();
        table.row(names);
        table
    }

    pub(crate) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(|cell| visible(&cell.into())).collect());
    }

    pub(crate) fn render(&self) -> String {
        self.indented(0)
    }

    pub(crate) fn indented(&self, indent: usize) -> String {
        let widths = self.widths();
        self.rows.iter().map(|row| line(row, &widths, indent)).collect()
    }

    /// The width of each column, for rows that come later.
    pub(crate) fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width =
            |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell)).max();
        (0..columns).map(|column| width(column).unwrap_or_default()).collect()
    }

    /// Renders at least as wide as given, so that tables that follow each other line up.
    pub(crate) fn render_within(&self, widths: &mut Vec<usize>) -> String {
        let own = self.widths();
        widths.resize(widths.len().max(own.len()), 0);
        for (width, own) in widths.iter_mut().zip(&own) {
            *width = (*width).max(*own);
        }
        self.rows.iter().map(|row| line(row, widths, 0)).collect()
    }
}

fn line(row: &[String], widths: &[usize], indent: usize) -> String {
    let mut text = " ".repeat(indent);
    for (column, cell) in row.iter().enumerate() {
        text.push_str(cell);
        if column + 1 < row.len() {
            let fill = widths.get(column).copied().unwrap_or_default().saturating_sub(width(cell)) + 3;
            text.extend(std::iter::repeat_n(' ', fill));
        }
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// Characters, which is what most terminals show; colours take no room.
pub(crate) fn width(cell: &str) -> usize {
    let mut count = 0;
    let mut characters = cell.chars();
    while let Some(character) = characters.next() {
        if character == '\x1b' {
            characters.by_ref().find(|c| *c == 'm');
        } else {
            count += 1;
        }
    }
    count
}

/// Lets our own colours pass and escapes all other control characters.
fn visible(cell: &str) -> String {
    if !cell.contains(char::is_control) {
        return cell.to_owned();
    }
    let mut text = String::with_capacity(cell.len());
    let mut rest = cell;
    while let Some(character) = rest.chars().next() {
        let colour = colour_length(rest);
        if colour > 0 {
            text.push_str(&rest[..colour]);
            rest = &rest[colour..];
            continue;
        }
        if character.is_control() {
            text.extend(character.escape_default());
        } else {
            text.push(character);
        }
        rest = &rest[character.len_utf8()..];
    }
    text
}

/// The length of a colour sequence at the start, or 0.
fn colour_length(text: &str) -> usize {
    let Some(rest) = text.strip_prefix("\x1b[") else { return 0 };
    let digits = rest.bytes().take_while(|b| b.is_ascii_digit()).count();
    if digits <= 2 && rest[digits..].starts_with('m') { 2 + digits + 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_do_not_end_in_spaces() {
        let mut table = Table::with_header(["NAME", "STATUS", "AGE"]);
        table.row(["a", "Running", "5m"]);
        table.row(["a-longer-name", "\x1b[31mFailed\x1b[0m", ""]);
        let expected = "NAME            STATUS    AGE\n\
                        a               Running   5m\n\
                        a-longer-name   \x1b[31mFailed\x1b[0m\n";
        assert_eq!(table.render(), expected);
        assert_eq!(table.indented(2).lines().next(), Some("  NAME            STATUS    AGE"));
    }

    #[test]
    fn no_cell_speaks_to_the_terminal() {
        let mut table = Table::plain();
        table.row(["a\nb\tc", "\x1b]0;title\x07", "é"]);
        assert_eq!(table.render(), "a\\nb\\tc   \\u{1b}]0;title\\u{7}   é\n");
    }

    #[test]
    fn later_rows_keep_the_columns() {
        let mut widths = vec![10];
        let mut table = Table::plain();
        table.row(["a", "b"]);
        assert_eq!(table.render_within(&mut widths), "a            b\n");
        assert_eq!(widths, [10, 1]);
    }
}
