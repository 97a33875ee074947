//! Answers as CSV (RFC 4180, with a header line).

use super::{SeriesAnswer, TopAnswer};

/// `rank,eventType,typeId,count`, one line a result.
#[must_use]
pub fn top_csv(answer: &TopAnswer) -> String {
    let mut text = "rank,eventType,typeId,count\r\n".to_owned();
    for ranked in &answer.results {
        text.push_str(&ranked.rank.to_string());
        text.push(',');
        push_cell(&mut text, &ranked.event_type);
        text.push_str(&format!(",{},{}\r\n", ranked.type_id, ranked.count.0));
    }
    text
}

/// `start,count,complete`, one line a point.
#[must_use]
pub fn series_csv(answer: &SeriesAnswer) -> String {
    let mut text = "start,count,complete\r\n".to_owned();
    for point in &answer.points {
        text.push_str(&format!("{},{},{}\r\n", point.start, point.count.0, point.complete));
    }
    text
}

/// Appends a text cell: quoted where CSV needs it, and with a leading `'` where a spreadsheet
/// would take it for a formula.
fn push_cell(text: &mut String, cell: &str) {
    let guard = if cell.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
    if cell.contains([',', '"', '\r', '\n']) {
        text.push('"');
        text.push_str(guard);
        text.push_str(&cell.replace('"', "\"\""));
        text.push('"');
    } else {
        text.push_str(guard);
        text.push_str(cell);
    }
}

#[cfg(test)]
mod tests {
    use super::push_cell;

    #[test]
    fn cells_are_quoted_where_csv_needs_it_and_guarded_where_a_spreadsheet_would_run_them() {
        let cases = [
            ("signup", "signup"),
            ("a,b", "\"a,b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("=1+1", "'=1+1"),
            ("+49", "'+49"),
            ("-x", "'-x"),
            ("@cmd", "'@cmd"),
            ("\tx", "'\tx"),
            ("=A1,B1", "\"'=A1,B1\""),
        ];
        for (cell, want) in cases {
            let mut text = String::new();
            push_cell(&mut text, cell);
            assert_eq!(text, want, "{cell:?}");
        }
    }
}
