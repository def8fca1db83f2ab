//! Names of Unicode categories and scripts that have no member in ASCII.
//!
//! A pattern that names one is valid; such a class simply holds none of the characters our texts consist of.

/// Lower case, without separators, in alphabetical order.
const NAMES: &str = "\
     adlam ahom anatolianhieroglyphs arabic armenian avestan balinese bamum bassavah batak bengali bhaiksuki \
     bopomofo brahmi braille buginese buhid canadianaboriginal carian caucasianalbanian cf chakma cham \
     cherokee chorasmian cn co combiningmark coptic cs cuneiform cypriot cyprominoan cyrillic deseret \
     devanagari divesakuru dogra duployan egyptianhieroglyphs elbasan elymaic enclosingmark ethiopic \
     finalpunctuation format georgian glagolitic gothic grantha greek gujarati gunjalagondi gurmukhi han \
     hangul hanifirohingya hanunoo hatran hebrew hiragana imperialaramaic inherited initialpunctuation \
     inscriptionalpahlavi inscriptionalparthian javanese kaithi kannada katakana kawi kayahli kharoshthi \
     khitansmallscript khmer khojki khudawadi lao lepcha letternumber limbu lineara linearb lineseparator \
     lisu lm lo lt lycian lydian m mahajani makasar malayalam mandaic manichaean marchen mark masaramgondi mc \
     me medefaidrin meeteimayek mendekikakui meroiticcursive meroitichieroglyphs miao mn modi modifierletter \
     mongolian mro multani myanmar nabataean nagmundari nandinagari newa newtailue nko nl no nonspacingmark \
     nushu nyiakengpuachuehmong ogham olchiki oldhungarian olditalic oldnortharabian oldpermic oldpersian \
     oldsogdian oldsoutharabian oldturkic olduyghur oriya osage osmanya otherletter othernumber othersymbol \
     pahawhhmong palmyrene paragraphseparator paucinhau pf phagspa phoenician pi privateuse psalterpahlavi \
     rejang runic samaritan saurashtra sharada shavian siddham signwriting sinhala so sogdian sorasompeng \
     soyombo spacingmark sundanese surrogate sylotinagri syriac tagalog tagbanwa taile taitham taiviet takri \
     tamil tangsa tangut telugu thaana thai tibetan tifinagh tirhuta titlecaseletter toto ugaritic unassigned \
     vai vithkuqi wancho warangciti yezidi yi zanabazarsquare zl zp";

pub(super) fn beyond_ascii(name: &str) -> bool {
    !name.is_empty() && NAMES.split_ascii_whitespace().any(|known| known == name)
}
